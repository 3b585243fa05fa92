"""Where studies get their models: trained by the trainer itself, once for all studies that ask for the same one."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import torch

from vit.atomic import write_json
from vit.checkpoints import load_model, save_model
from vit.config import Config, DataConfig
from vit.data import Dataset, load_data
from vit.data.augment import Normalization, to_float
from vit.data.draws import derive_seed
from vit.data.images import evenly_spaced
from vit.device import Compute, choose_compute
from vit.evaluate import Options, evaluate
from vit.evaluate.probe import L2_GRID
from vit.interpret import DynamicsRecorder
from vit.mae import MaskedAutoencoder
from vit.training.callbacks import Callback, Progress
from vit.training.initial import initial_model
from vit.training.loop import Step, train_and_save
from vit.training.run import Run, find_state, restore, setup
from vit.training.run_folder import RunFolder


@dataclass(frozen=True)
class Learned:
    """A model that was trained for a study, and how it was before.

    Attributes:
        config: all settings; `config.train.seed` is its seed.
        data: what it learned from, and is measured on.
        model, initial: after and before training, in eval mode, on the device of `compute`.
        normalize: of the input.
        compute: device and precision.
        folder: of the run; with `run.dynamics_every`, dynamics.safetensors is there.
        seconds: of training.
    """

    config: Config
    data: Dataset
    model: MaskedAutoencoder
    initial: MaskedAutoencoder
    normalize: Normalization
    compute: Compute
    folder: Path
    seconds: float

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (B, C, h, w) -> the model's input (B, C, H, W), on its device."""
        return self.normalize(to_float(images.to(self.compute.device), self.config.model.image_size_2d))

    def sample(self, count: int, split: Literal["test", "train"] = "test") -> torch.Tensor:
        """Up to `count` images of a split, spread evenly over it: uint8 (n, C, h, w).

        Those of a folder lie sorted by class: its first images would be of one class alone.
        """
        images = (self.data.test if split == "test" else self.data.train).images
        return images[evenly_spaced(len(images), count)]

    @cached_property
    def halfway(self) -> MaskedAutoencoder:
        """The model after half of its steps, likewise."""
        return _load(self.folder / "halfway", self.compute)

    @cached_property
    def scores(self) -> Scores:
        """The figures of the trained model; measured once, and kept in the run's folder."""
        return self._kept(self.model, "worth.json")

    @cached_property
    def init_scores(self) -> Scores:
        """The figures of the model before training: what its architecture gives without any learning."""
        return self._kept(self.initial, "worth-at-start.json")

    def _kept(self, model: MaskedAutoencoder, name: str) -> Scores:
        place = self.folder / name
        if not place.exists():
            write_json(place, vars(self._measure(model)))
        return Scores(**json.loads(place.read_text(encoding="utf-8")))

    def _measure(self, model: MaskedAutoencoder) -> Scores:
        mask = self.config.mask
        options = Options(
            masks=((mask.kind, mask.ratio),),
            raw_pixels=False,
            held_out=torch.arange(len(self.data.train)) % 10 == 9,
            # The weakest regularisations take longest to fit, and serve where there are many more images than dimensions.
            l2_grid=L2_GRID[:3],
        )
        methods = ("reconstruction", "knn", "linear")
        figures = evaluate(model, self.data, methods, self.prepare, self.compute, options).figures
        (row,) = figures["reconstruction"]
        return Scores(row["loss"], figures["knn"]["accuracy"], figures["linear"]["accuracy"])


@dataclass(frozen=True)
class Scores:
    """The figures of a model on test images.

    Attributes:
        loss: over hidden patches, under the fixed test mask.
        neighbours: accuracy of the 20 nearest neighbours of its features, from 0 to 1.
        linear: accuracy of a linear probe of its last layer, from 0 to 1.
    """

    loss: float
    neighbours: float
    linear: float


class Laboratory:
    """Trains the models of studies in a folder, and finds again those that are there.

    Args:
        folder: for the runs, one each, named after what they are.
        tell: gets a line when a training begins.

    Attributes:
        waited: seconds for trainings that were made now.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None] = print):
        self.folder = folder
        self.tell = tell
        self._data: dict[DataConfig, Dataset] = {}
        self._seconds: dict[Path, float] = {}
        self.waited = 0.0

    @property
    def used(self) -> list[Dataset]:
        """The data sets that studies asked for so far."""
        return list(self._data.values())

    @property
    def training_seconds(self) -> float:
        """Of training that went into the models that were asked for, now or earlier."""
        return sum(self._seconds.values())

    def data(self, config: Config) -> Dataset:
        """The images that `config` names, loaded once."""
        if config.data not in self._data:
            self._data[config.data] = load_data(config.data, config.model.image_size_2d)
        return self._data[config.data]

    def learn(
        self,
        config: Config,
        seed: int,
        name: str = "as it is",
        start: Callable[[MaskedAutoencoder], None] | None = None,
    ) -> Learned:
        """A model of `config`, trained now or found as it was trained before; an interrupted training goes on.

        Args:
            config: all settings, but for the seed.
            seed: of weights, order, masks.
            name: what is special about it: with config, seed and data, it says which model this is.
            start: changes the new model before the first step; frozen parts stay as it leaves them.
        """
        config = replace(config, train=replace(config.train, seed=seed))
        data = self.data(config)
        mark = json.dumps([name, config.deciding(), data.content_hash])
        place = self.folder / f"{name.replace(' ', '-')}-{hashlib.sha256(mark.encode()).hexdigest()[:8]}-seed{seed}"
        if not (place / "learned.json").exists():
            self.tell(f"training: {name}, seed {seed}, {data.name}")
            since = time.perf_counter()
            self._train(config, data, place, start)
            self.waited += time.perf_counter() - since
        learned = self._found(config, data, place)
        self._seconds[place] = learned.seconds
        return learned

    def _train(
        self, config: Config, data: Dataset, place: Path, start: Callable[[MaskedAutoencoder], None] | None
    ) -> None:
        # a changed start is a checkpoint to begin with
        initial, folder = place / "initial", RunFolder(place)
        if start is not None:
            if not (initial / "config.json").exists():
                torch.manual_seed(derive_seed(config.train.seed, "weights", 0))
                model, normalize, *_ = initial_model(config, data)
                start(cast(MaskedAutoencoder, model))
                save_model(initial, model, normalize, data_content_hash=data.content_hash)
            config = replace(config, model=replace(config.model, init=str(initial)))
        folder.begin(None if folder.begun else json.dumps(config.to_dict(), indent=2) + "\n")  # JSON is YAML too

        # the run, begun or continued
        state = find_state(folder.checkpoints, config, data)
        run = setup(config, data, state=state)
        if every := config.run.dynamics_every:
            run.callbacks.append(DynamicsRecorder(run.model, every, run.total_steps, folder.dynamics))
        if state is not None:
            restore(run, state)
        if run.step == 0 and start is None:
            run.save_model(initial)
        run.callbacks += [Progress(run.total_steps, config.train.epochs, run.step), _Halfway(place / "halfway")]
        train_and_save(run, folder.checkpoints)
        run.save_model(place)
        write_json(place / "learned.json", {"seconds": run.seconds, "steps": run.step})

    def _found(self, config: Config, data: Dataset, place: Path) -> Learned:
        compute = choose_compute(config.run, "fp32")
        model, initial = (_load(folder, compute) for folder in (place, place / "initial"))
        normalize = model.origin.normalize
        seconds = json.loads((place / "learned.json").read_text(encoding="utf-8"))["seconds"]
        return Learned(config, data, model, initial, normalize, compute, place, seconds)


class _Halfway(Callback):
    """Keeps the weights after half of the steps."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_step(self, run: Run, done: Step) -> None:
        if done.step == max(run.total_steps // 2, 1):
            run.save_model(self.folder)


def _load(folder: Path, compute: Compute) -> MaskedAutoencoder:
    """A model of a run, in eval mode, on the device of `compute`."""
    return cast(MaskedAutoencoder, load_model(str(folder))).to(compute.device).eval()
