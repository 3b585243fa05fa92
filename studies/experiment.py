"""What a study works with: settings, images, and models, each trained once for all studies that ask
for it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from studies import StudyConfig
from studies.tables import Seeds, seeds
from vit.atomic import write_json
from vit.attention import MultiHeadSelfAttention
from vit.checkpoints import load_model, save_model
from vit.config import Config, DataConfig, changed
from vit.data import Dataset
from vit.data.draws import seeded_weights
from vit.data.sources import load_data
from vit.device import Compute
from vit.errors import RunError
from vit.evaluation import Options, evaluate
from vit.evaluation.probe import L2_GRID
from vit.evaluation.reconstruction import fixed_mask, score_reconstruction
from vit.inputs import Normalization, evenly_spaced
from vit.machine import choose_compute
from vit.mae import MaskedAutoencoder, Model
from vit.masking import Mask
from vit.patches import patchify
from vit.runs import read_mapping
from vit.training.callbacks import Progress
from vit.training.dynamics import DynamicsRecorder
from vit.training.initial import architecture_of, freeze, initial_model
from vit.training.loop import train_and_save
from vit.training.run import setup
from vit.training.run_folder import RunFolder, find_state
from vit.training.step import Callback, restore
from vit.weights import Origin, build_model, checkpoint_hash

# --- arms: models that differ in one thing each, from the same seeds, on the same data -----------


@dataclass(frozen=True)
class Arm:
    """What differs from the usual model: frozen parts (see `vit.training.initial`), settings,
    weights before the first step."""

    freeze: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    start: Callable[[MaskedAutoencoder], None] | None = None

    def config(self, config: Config) -> Config:
        """Return `config` with the arm's changes."""
        changes = {"model.freeze": [*config.model.freeze, *self.freeze]} | dict(self.settings)
        return changed(config, changes)


def without_positions(model: MaskedAutoencoder, decoder: bool = False) -> None:
    """Set the encoder's positions to zero, and with `decoder` the decoder's too."""
    nn.init.zeros_(model.encoder.pos_embed)
    if decoder:
        nn.init.zeros_(model.decoder.pos_embed)


def without_queries(model: MaskedAutoencoder) -> None:
    """Set W_Q and its bias to zero: all scores are 0, and all attention weights equal."""
    for module in model.modules():
        if isinstance(module, MultiHeadSelfAttention) and module.qkv is not None:
            for parameter in module.qkv.parameters():
                nn.init.zeros_(parameter.chunk(3)[0])


LEARNED_TABLE = {"model.pos_embed": "learned"}  # a table that the arm's start can set to zero
USUAL, IDENTITY = "all learn", "Q = K = V = X"
ARMS = {
    USUAL: Arm(),
    "W_E frozen": Arm(("patch_embed",)),
    "W_Q frozen": Arm(("W_Q",)),
    "W_K frozen": Arm(("W_K",)),
    "W_V frozen": Arm(("W_V",)),
    "W_O frozen": Arm(("W_O",)),
    "MLP frozen": Arm(("mlp",)),
    "W_Q and W_K frozen": Arm(("W_Q", "W_K")),
    "all three frozen": Arm(("W_Q", "W_K", "W_V")),
    IDENTITY: Arm(settings={"model.qkv": "identity"}),
    "uniform attention": Arm(("W_Q", "W_K"), start=without_queries),
    "one head in each layer": Arm(settings={"model.num_heads": 1, "model.decoder_heads": 1}),
    "positions learned": Arm(settings=LEARNED_TABLE),
    "no positions in the encoder": Arm(("encoder.pos_embed",), LEARNED_TABLE, without_positions),
    "no positions at all": Arm(
        ("encoder.pos_embed",), LEARNED_TABLE, partial(without_positions, decoder=True)
    ),
    "shuffled across images": Arm(settings={"augment.shuffle": "across"}),
    "shuffled within images": Arm(settings={"augment.shuffle": "within"}),
}
"""By their names in tables and runs."""

# --- a model, before and after its training -------------------------------------------------------

XAVIER, NARROW = "random weights, Xavier", "random weights, std 0.02"
"""Models that have not learned, by how their layers' linear maps are drawn: as this package and MAE
do, and as timm and DINO do. What untrained attention does depends on it."""

SCORES = {
    "loss": "loss over masked patches",
    "knn": "20 nearest neighbours",
    "linear": "linear probe",
}
"""A model's scores on all test images: the loss under the fixed mask, accuracies of its
features."""


def over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, Seeds]:
    """Collect the `SCORES` of several seeds."""
    collected = {}
    for key in SCORES:
        values = [scores_of_seed[key] for scores_of_seed in scores]
        collected[key] = seeds(values, share=key != "loss")
    return collected


@dataclass(frozen=True)
class Trained:
    """A study's model after and before its training (`initial`), in eval mode, with its images and
    its run folder.

    For a checkpoint, which may be only an encoder, `initial` has the same architecture and random
    weights.
    """

    # Among the models of an arm: "seed 0"
    name: str
    config: Config
    data: Dataset
    model: MaskedAutoencoder
    initial: MaskedAutoencoder
    normalize: Normalization
    compute: Compute
    folder: Path

    @cached_property
    def narrow(self) -> MaskedAutoencoder:
        """The model before training, its layers' linear maps drawn anew from a narrower
        distribution: normal, truncated, std 0.02."""
        model = deepcopy(self.initial)
        with seeded_weights(self.config.train.seed):
            for name, parameter in model.named_parameters():
                if "blocks." in name and parameter.ndim == 2:
                    nn.init.trunc_normal_(parameter, std=0.02)
        return model

    def prepare(self, images: Tensor) -> Tensor:
        """Return the model's input for images: uint8 (B, C, h, w) -> (B, C, H, W), on its device.

        The whole image, whatever crop the model is used to: patches are compared with what is known
        about their pixels.
        """
        origin = replace(self.model.origin, crop_share=1.0)
        return origin.inputs(images.to(self.compute.device))

    def sample(self, count: int, split: Literal["test", "train"] = "test") -> Tensor:
        """Return up to `count` images of a split: uint8 (n, C, h, w).

        They are evenly spaced, because the first images of a folder are all of one class.
        """
        images = (self.data.test if split == "test" else self.data.train).images
        return images[evenly_spaced(len(images), count)]

    def inputs(self, count: int, split: Literal["test", "train"] = "test") -> Tensor:
        """Return such a sample as the model's input (n, C, H, W)."""
        return self.prepare(self.sample(count, split))

    def patches(self, count: int, split: Literal["test", "train"] = "test") -> Tensor:
        """Return the normalised patches of such a sample: (n, L, P)."""
        return patchify(self.inputs(count, split), self.model.encoder.patch_embed.patch_size)

    def masked(self, inputs: Tensor, size: int) -> Iterator[tuple[Tensor, Mask]]:
        """Yield batches of test images with masks that are the same each time; refuse a model
        without a decoder."""
        if self.model.decoder is None:
            source = self.model.origin.source
            raise RunError(f"--checkpoint: {source} has no decoder, to reconstruct masked patches")
        settings = self.config.mask
        grid_size = self.config.model.grid_size
        for number, batch in enumerate(inputs.split(size)):
            start = number * size
            mask = fixed_mask(settings.kind, start, len(batch), grid_size, settings.ratio)
            yield batch, mask.to(inputs.device)

    def reconstruction(self) -> dict[str, float]:
        """Return the trained model's loss on all test images, with its baselines."""
        mask = self.config.mask
        images = self.data.test.images
        return score_reconstruction(
            self.model, images, self.prepare, mask.kind, mask.ratio, self.compute
        )

    @cached_property
    def scores(self) -> dict[str, float]:
        """The trained model's `SCORES`; measured once, and kept in the run folder."""
        return self._measured(self.model, "scores.json")

    @cached_property
    def initial_scores(self) -> dict[str, float]:
        """The `SCORES` before training: what the architecture gives without any learning."""
        return self._measured(self.initial, "scores-at-start.json")

    def _measured(self, model: MaskedAutoencoder, name: str) -> dict[str, float]:
        path = self.folder / name
        if not path.exists():
            options = Options(
                masks=((self.config.mask.kind, self.config.mask.ratio),),
                baselines=False,
                held_out=torch.arange(len(self.data.train)) % 10 == 9,
                # The weakest regularisations take longest to fit, and help only with far more
                # images than dimensions.
                l2_grid=L2_GRID[:3],
            )
            methods = ("reconstruction", "knn", "linear")
            # whole images, as by `prepare`
            data = replace(self.data, prepared=True)
            evaluation = evaluate(model, data, methods, self.compute, options)
            measured = evaluation.scores
            scores = {
                "loss": measured["reconstruction"][0]["loss"],
                "knn": measured["knn"][0]["accuracy"],
                "linear": measured["linear"][0]["accuracy"],
            }
            write_json(path, scores)
        return read_mapping(path)

    def numbers_that_learn(self) -> int:
        """Count the parameters that are neither fixed nor frozen."""
        model = deepcopy(self.initial)
        rows = freeze(model, self.config.model.freeze)
        count = 0
        for parameter in model.parameters():
            if parameter.requires_grad:
                count += parameter.numel()
        # Frozen rows are parts of parameters that learn
        return count - sum(row.numel() for row in rows)


def trained_and_random(
    models: Sequence[Trained], measure: Callable[[Trained, MaskedAutoencoder], Tensor]
) -> dict[str, Tensor]:
    """Measure models after training, and with random weights of two kinds: (seeds, ...) each."""
    return {
        "trained": torch.stack([measure(trained, trained.model) for trained in models]),
        XAVIER: torch.stack([measure(trained, trained.initial) for trained in models]),
        NARROW: torch.stack([measure(trained, trained.narrow) for trained in models]),
    }


# --- the experiment ----------------------------------------------------------------


@dataclass
class Experiment:
    """Gives a study its images and models: those that it trains, or a checkpoint.

    Attributes:
        config: settings of the trainings, except the seed; with a checkpoint, of its architecture.
        study: the study's own settings.
        folder: for the runs.
        tell: gets a line when a training begins.
        used: the loaded data sets.
        seconds: of training by run, including runs found on disk.
        waited: seconds of training done now.
        checkpoint: the model to look at; None: train.
        left_out: what was asked for but needs other trainings than the checkpoint's.
        measured_on: names of the images that results to be replaced are of, by image hash; others
            are refused.
    """

    config: Config
    study: StudyConfig
    folder: Path
    tell: Callable[[str], None] = print
    used: dict[DataConfig, Dataset] = field(default_factory=dict, init=False)
    seconds: dict[Path, float] = field(default_factory=dict, init=False)
    waited: float = field(default=0.0, init=False)
    checkpoint: Model | None = field(default=None, init=False)
    left_out: list[str] = field(default_factory=list, init=False)
    measured_on: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.study.checkpoint:
            self.checkpoint = load_model(self.study.checkpoint, strict=True)
            model = changed(self.config.model, architecture_of(self.checkpoint))
            if model.qkv != "linear" or not model.qkv_bias:
                matrices = "W_Q, W_K, W_V and their biases, which studies measure"
                raise RunError(f"--checkpoint: {self.name} does not have {matrices}")
            self.config = changed(self.config, {"model": model})
            self.study = replace(self.study, seeds=self.study.seeds[:1])

    @property
    def name(self) -> str:
        """The checkpoint's name in captions; empty if models are trained."""
        return Path(self.study.checkpoint).name

    @property
    def on_scenes(self) -> Config:
        """The same settings with Scenes, where what every pixel shows is known."""
        if self.config.data.source == "scenes":
            return self.config
        elsewhere = ("source", "root", "name", "cache")
        kept = {key: value for key, value in self.config.data if key not in elsewhere}
        return changed(self.config, {"data": DataConfig(source="scenes", **kept)})

    def data(self, config: Config | None = None) -> Dataset:
        """Return the images of a configuration; loaded once."""
        config = config or self.config
        if config.data not in self.used:
            self.used[config.data] = load_data(config.data, config.model.image_size)
        if self.measured_on and self.used[config.data].content_hash not in self.measured_on:
            names = ", ".join(self.measured_on.values())
            raise RunError(
                f"--out holds this study on other images ({names}); name another folder with --out"
            )
        return self.used[config.data]

    def require_labels(self) -> Dataset:
        """Return the images; refuse those without labels."""
        data = self.data()
        if not data.has_classes:
            problem = "has no labels to measure features by"
            raise RunError(f"{data.name} {problem}; take images of two classes or more")
        return data

    def models(self, arm: str = USUAL, config: Config | None = None) -> list[Trained]:
        """Return the models of one of `ARMS`, one per seed: trained now, or found; an interrupted
        training continues.

        A checkpoint is the only model of the usual arm, for any images; the other arms have none.
        """
        if arm != USUAL and self.leaves_out(arm):
            return []
        return [
            self._model(arm, ARMS[arm].config(config or self.config), seed)
            for seed in self.study.seeds
        ]

    def leaves_out(self, part: str) -> bool:
        """Return whether there is a checkpoint; if so, note that a part of a study is left out.

        The part takes other trainings than the checkpoint's.
        """
        if self.checkpoint is None:
            return False
        self.left_out.append(part)
        return True

    def _model(self, arm: str, config: Config, seed: int) -> Trained:
        config = changed(config, {"train.seed": seed})
        data = self.data(config)
        compute = choose_compute(config.run, "fp32")
        if self.checkpoint is not None:
            name = "checkpoint"
            folder = self.folder / f"{checkpoint_hash(self.checkpoint)}-{data.content_hash}"
            model = self.checkpoint
            initial = untrained(self.checkpoint, seed)
            initial.origin = model.origin
        else:
            name = f"seed {seed}"
            folder = self._trained(arm, config, data)
            model = load_model(folder)
            initial = load_model(folder / "initial")
        return Trained(
            name,
            config,
            data,
            cast(MaskedAutoencoder, model).to(compute.device).eval(),
            cast(MaskedAutoencoder, initial).to(compute.device).eval(),
            model.origin.normalize,
            compute,
            folder,
        )

    def _trained(self, arm: str, config: Config, data: Dataset) -> Path:
        """Return the folder of a run, trained now or found by arm, settings, seed and data."""
        content = json.dumps([arm, config.deciding(), data.content_hash])
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        words = re.sub(r"[^A-Za-z_]+", "-", arm)
        folder = self.folder / f"{words}-{digest}-seed{config.train.seed}"
        if not (folder / "learned.json").exists():
            self.tell(f"training: {arm}, seed {config.train.seed}, {data.name}")
            since = time.perf_counter()
            _train(config, data, folder, ARMS[arm].start)
            self.waited += time.perf_counter() - since
        self.seconds[folder] = read_mapping(folder / "learned.json")["seconds"]
        return folder


def untrained(model: Model, seed: int) -> Model:
    """Return a model of the same architecture with the first weights of a training with a seed."""
    decoder = None if model.decoder is None else model.decoder.config
    norm_pix_loss = getattr(model, "norm_pix_loss", False)
    with seeded_weights(seed):
        return build_model(model.encoder.config, decoder, norm_pix_loss)


def _train(
    config: Config, data: Dataset, folder: Path, start: Callable[[MaskedAutoencoder], None] | None
) -> None:
    """Train a model into `folder`, whose learned.json is written last."""
    # Changed initial weights are a checkpoint to start from
    initial = folder / "initial"
    run_folder = RunFolder(folder)
    if start is not None:
        if not (initial / "config.json").exists():
            with seeded_weights(config.train.seed):
                model, normalize, _ = initial_model(config, data)
                start(cast(MaskedAutoencoder, model))
            encoder = model.encoder.config
            origin = Origin(
                normalize=normalize,
                image_size=encoder.image_size,
                channels=encoder.channels,
                data_content_hash=data.content_hash,
            )
            save_model(initial, model, origin)
        config = changed(config, {"model.init": str(initial)})
    settings = None
    if not run_folder.config.exists():
        # JSON is YAML too
        settings = json.dumps(config.to_dict(), indent=2) + "\n"
    run_folder.begin(settings)

    # The run, begun or continued
    state = find_state(run_folder.checkpoints, config, data)
    loaded = None if start is None or state is not None else load_model(initial)
    run = setup(config, data, state=state, init=loaded)
    callbacks: list[Callback] = [Progress(run)]
    if config.run.dynamics_every:
        callbacks.append(DynamicsRecorder(run_folder.dynamics, run))
    restore(callbacks, run.callback_states)
    if run.step == 0 and start is None:
        run.save_model(initial)
    train_and_save(run, callbacks, run_folder.checkpoints)
    run.save_model(folder)
    write_json(folder / "learned.json", {"seconds": run.seconds, "steps": run.step})
