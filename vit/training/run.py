"""A run in memory: everything that its next step depends on; set up, saved and restored here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.attention import choose_kernel, set_kernel
from vit.config import Config, ViTConfig
from vit.data import Dataset
from vit.data.draws import seeded_weights
from vit.device import Compute
from vit.errors import ConfigError
from vit.inputs import Normalization
from vit.machine import choose_compute, choose_device, choose_precision
from vit.mae import Model
from vit.training.distributed import SINGLE, Distributed
from vit.training.initial import freeze, initial_model, restore_frozen_rows
from vit.training.objectives import CLASSES, Objective
from vit.training.optimizer import AveragedWeights, LossScale, make_optimizer
from vit.training.run_folder import RunFolder, save_state
from vit.weights import NO_IMAGES, Origin, architecture, checkpoint_hash, save_model

CPU_TOKENS = 8_448
"""Most tokens of a micro-batch on a CPU: larger ones are no faster there, and fill the memory."""


@dataclass
class Run:
    """A training run: device and precision, objective with its model, optimizer and so on.

    Attributes:
        ema: the average of the weights over the steps, if `optim.ema` is set.
        notes: lines that the user should see, e.g. on damage, or differences from the session
            before.
        init_hash: `vit.weights.checkpoint_hash` of the initial model; "" for random weights.
        seen_before: hashes of the images that the initial model, or the session before, was trained
            on, int64 (M,).
        callback_states: states of a resumed run's callbacks, by name; None for a run that begins.
        folder: the run folder; None for a run in memory only.
        summary: the content of summary.json; empty until the run is finished.
        step: steps done.
        seconds: seconds of training, over all sessions.
    """

    config: Config
    data: Dataset
    compute: Compute
    normalize: Normalization
    objective: Objective
    optimizer: torch.optim.Optimizer
    loss_scale: LossScale
    ema: AveragedWeights | None
    dist: Distributed
    notes: list[str]
    init_hash: str = ""
    seen_before: Tensor = NO_IMAGES
    callback_states: dict[str, Any] | None = None
    folder: RunFolder | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        place = self.folder.path if self.folder else "in memory"
        return f"Run({place}, {self.step:,} of {self.total_steps:,} steps)"

    @property
    def model(self) -> Model:
        return self.objective.model

    @property
    def result(self) -> Model:
        """The model that the run produces: the trained one, or its average."""
        if self.ema is None:
            return self.model
        return self.ema.module  # type: ignore[return-value]

    @property
    def origin(self) -> Origin:
        """The origin of the result, as if it had been loaded from the run folder."""
        source = str(self.folder.path) if self.folder else ""
        encoder = self.model.encoder.config
        return Origin(
            normalize=self.normalize,
            image_size=encoder.image_size,
            channels=encoder.channels,
            source=source,
            class_names=self.data.train.class_names,
            data=self.data.name,
            data_content_hash=self.data.content_hash,
            trained_on=self.trained_on,
        )

    @property
    def trained_on(self) -> Tensor:
        """Hashes of all images that the result was trained on, int64 (M,)."""
        return torch.cat([self.seen_before, self.data.train.image_hashes]).unique()

    @property
    def total_steps(self) -> int:
        return self.config.train.epochs * self.config.steps_per_epoch(len(self.data.train))

    def has_line(self, step: int) -> bool:
        """Return whether metrics.jsonl gets a line of a step (from 1), but for the first.

        The lines are 1 to 10 steps apart, at most a fiftieth of the run; the last step has one.
        """
        between = min(max(self.total_steps // 50, 1), 10)
        return step % between == 0 or step == self.total_steps

    @property
    def held_steps(self) -> int:
        """The step whose checkpoint is kept, for a longer run; 0 for none."""
        return self.config.held_steps(len(self.data.train))

    @property
    def grad_accum_steps(self) -> int:
        """Micro-batches per step in each process: as set, or as many as suit the device."""
        if self.config.run.grad_accum_steps:
            return self.config.run.grad_accum_steps
        # a loss that compares the images of a batch needs all at once
        if self.compute.device.type != "cpu" or self.objective.compares_images:
            return 1
        # enough that each has at most CPU_TOKENS tokens
        images = self.dist.largest_shard(self.config.images_per_step)
        tokens = images * max(self.objective.lengths.values())
        return min(math.ceil(tokens / CPU_TOKENS), images)

    def save_model(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Save `result`, with all that `vit.checkpoints.load_model` needs."""
        save_model(folder, self.result, self.origin, dtype)

    def save(self, folder: Path, callback_states: dict[str, Any] | None = None) -> None:
        """Save a checkpoint of this step (see `vit.training.run_folder` for which are kept).

        A callback that this session lacks keeps the state with which the run resumed.
        """
        # the objective's own modules and buffers, without the model, which has its own key
        objective = self.objective.state_dict().items()
        own = {key: value for key, value in objective if not key.startswith("model.")}

        state: dict[str, Any] = {
            "step": self.step,
            "model": dict(self.model.state_dict()),
            "objective": own,
            "optimizer": self.optimizer.state_dict(),
            "callbacks": (self.callback_states or {}) | (callback_states or {}),
            "seconds": self.seconds,
            # empty without a scale
            "loss_scale": self.loss_scale.state_dict(),
            # for comparison with a resumed run
            "config": self.config.to_dict(),
            "data_content_hash": self.data.content_hash,
            "precision": self.compute.precision,
            "computed_on": describe_compute(self),
            # its own class is not a plain value
            "torch": str(torch.__version__),
            # everything else that belongs to the model
            "init": self.init_hash,
            "trained_on": self.trained_on.tolist(),
            "data": self.data.name,
            "class_names": list(self.data.train.class_names),
            "mean": self.normalize.mean,
            "std": self.normalize.std,
            **architecture(self.model),
        }
        if self.ema is not None:
            state["model_ema"] = dict(self.ema.module.state_dict())
        save_state(folder, self.step, state, kept=self.held_steps)


def describe_compute(run: Run) -> str:
    """Return the device, and the choices made for it, which decide the last bits of the result."""
    parts = run.grad_accum_steps
    images = math.ceil(run.dist.largest_shard(run.config.images_per_step) / parts)
    shares = f"{parts} x {images} images"

    # the attention kernel of each part of the model
    kernels = []
    for part, length in run.objective.lengths.items():
        kernel: str = run.config.run.attention
        if kernel == "auto":
            kernel = choose_kernel(run.compute.device, run.compute.products, length)
        kernels.append(f"{kernel} in the {part} ({length} tokens)")
    return f"{run.compute}, {run.dist}, {shares}; attention: {', '.join(kernels)}"


def setup(
    config: Config,
    data: Dataset,
    dist: Distributed = SINGLE,
    state: dict[str, Any] | None = None,
    init: Model | None = None,
) -> Run:
    """Build a run at its first step, or at that of `state`.

    Everything random comes from `config.train.seed`. A `state`, from `find_state`, gives the model
    and, if the device has it, the precision. A new run begins with `init`, if `config.model.init`
    names one.
    """
    if config.augment.shuffle == "across" and dist.world_size > 1:
        raise ConfigError(
            "augment.shuffle", "'across' exchanges patches within a batch: train in one process"
        )

    # compute, in one precision for all processes, and compiled if the whole run is long enough: a
    # resumed run computes as it began
    began = state["precision"] if state else ""
    device = choose_device(config.run.device)
    precision = dist.broadcast_from_main(
        lambda: choose_precision(device, config.train.precision, began)
    )
    total = config.train.epochs * config.steps_per_epoch(len(data.train))
    compute = choose_compute(config.run, precision, total)

    # the model; new weights and the objective's own draw from the seed
    objective_type = CLASSES[config.train.objective]
    with seeded_weights(config.train.seed):
        if state is None:
            model, normalize, notes = initial_model(config, data, init)
        else:
            model = objective_type.build_model(config, ViTConfig(**state["encoder"]))
            model.load_state_dict(state["model"])
            normalize = Normalization(state["mean"], state["std"])
            notes = state["notes"]
        set_kernel(model, config.run.attention)
        objective = objective_type(model.to(compute.device), config, data).to(compute.device)
    dist.share_weights(objective)

    # the trainable parameters, and their optimizer
    frozen_rows = freeze(model, config.model.freeze)
    optimizer = make_optimizer(objective, config.optim, compute.products, dist)
    restore_frozen_rows(optimizer, frozen_rows)
    ema = AveragedWeights(model, config.optim.ema) if config.optim.ema else None

    run = Run(
        config=config,
        data=data,
        compute=compute,
        normalize=normalize,
        objective=objective,
        optimizer=optimizer,
        loss_scale=LossScale(compute),
        ema=ema,
        dist=dist,
        # notes for the user, from each part
        notes=notes + objective.notes,
    )
    if compute.note:
        run.notes.append(compute.note)
    if state is not None:
        _restore(run, state)
    elif init is not None:
        run.init_hash = checkpoint_hash(init)
        run.seen_before = init.origin.trained_on
    # it is measured along the way, and its origin prepares the images
    run.result.origin = run.origin
    return run


def _restore(run: Run, state: dict[str, Any]) -> None:
    """Bring a run to the step of `state`, as if it had never stopped: on a CPU, bit for bit."""
    model = {f"model.{name}": values for name, values in state["model"].items()}
    run.objective.load_state_dict(state["objective"] | model)
    run.optimizer.load_state_dict(state["optimizer"])
    # a run in float16 began in float16; in another type the scale ignores it
    run.loss_scale.load_state_dict(state["loss_scale"])
    if run.ema is not None:
        run.ema.module.load_state_dict(state["model_ema"])
    run.init_hash = state["init"]
    run.seen_before = torch.tensor(state["trained_on"], dtype=torch.int64)
    run.callback_states = state["callbacks"]
    run.step = state["step"]
    run.seconds = state["seconds"]

    # a note for the user on whatever may change the last bits
    before = f"{state['computed_on']}, torch {state['torch']}"
    if before != f"{describe_compute(run)}, torch {torch.__version__}":
        effect = "from here results may differ in their last bits"
        if run.compute.precision != state["precision"]:
            effect = f"from here it computes in {run.compute.precision}"
        run.notes.append(f"the run began on {before}; {effect}")
