"""How a checkpoint becomes a model: each of its tensors by our name, what is done to it, and what was assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from vit.checkpoints.formats import Format, Hints
from vit.checkpoints.names import KeyRule, Shape
from vit.checkpoints.origin import Report, size_text
from vit.checkpoints.reading import Source, weight_problem
from vit.config import DecoderConfig, ViTConfig
from vit.load_options import CheckpointError, LoadOptions


@dataclass
class TensorPlan:
    """One tensor of the model to be: where it comes from, and what is done to it.

    Attributes:
        keys: their tensors, and how they become ours.
        shape: in the end.
        steps: functions of the tensor, in turn.
        notes: what they do, for the user.
    """

    keys: KeyRule
    shape: Shape
    steps: list[Callable[[Tensor], Tensor]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def then(self, step: Callable[[Tensor], Tensor], shape: Shape, note: str) -> None:
        """Do `step` too, which gives `shape`; `note` says so to the user."""
        self.steps.append(step)
        self.notes.append(note)
        self.shape = shape


@dataclass
class Plan:
    """A checkpoint on its way to a model; it can be shown instead of loaded.

    Attributes:
        source: what was read.
        options: what was asked for.
        format: as recognised.
        prefix: what stands before the names of its tensors.
        hints: what its settings say.
        tensors: those that the model takes, by our names.
        report: for the user.
        encoder: its architecture.
        decoder: likewise; None for an encoder alone.
        norm_pix_loss: of an autoencoder.
    """

    source: Source
    options: LoadOptions
    format: Format
    prefix: str
    hints: Hints
    tensors: dict[str, TensorPlan]
    report: Report
    encoder: ViTConfig = field(init=False)
    decoder: DecoderConfig | None = field(init=False)
    norm_pix_loss: bool = False

    def error(self, what: str) -> CheckpointError:
        """Return an error that names the checkpoint."""
        return CheckpointError(f"{self.source.path}: {what}")

    def note(self, what: str) -> None:
        """Tell the user."""
        self.report.notes.append(what)

    def shape(self, name: str, dimensions: int) -> Shape:
        """Return the shape of a tensor, by our name, that no model is without."""
        if name not in self.tensors:
            raise self.error(
                f"no {name} in it, so this is no vision transformer that can be loaded ({self.format.name})"
            )
        shape = self.tensors[name].shape
        if len(shape) != dimensions or not all(shape):
            raise self.error(f"{name} has the shape {size_text(shape)}, where {dimensions} dimensions are expected")
        return shape

    def decodes(self) -> bool:
        """Return whether there is a decoder."""
        return any(name.startswith("decoder.") for name in self.tensors)

    def drop(self, name: str, why: str) -> None:
        """Leave one of our tensors out."""
        if name in self.tensors:
            self.report.dropped |= dict.fromkeys(self.tensors.pop(name).keys.theirs, why)

    def allows(self, name: str) -> bool:
        """Return whether the options allow one of ours, by any name that a message could have called it."""
        theirs = self.tensors[name].keys.theirs if name in self.tensors else ()
        return self.options.allows(name, f"encoder.{name}", *theirs, *(key.removeprefix(self.prefix) for key in theirs))

    def problem(self, name: str) -> str:
        """Return why the values of one of our tensors cannot be used, "" if they can."""
        allowed = self.allows(name)
        keys = self.tensors[name].keys.theirs
        return next(filter(None, (weight_problem(key, self.source.tensors[key], allowed) for key in keys)), "")

    def model_name(self, name: str) -> str:
        """Return one of our names as the model has it: an autoencoder holds its encoder under `encoder.`."""
        return name if self.decoder is None or name.startswith("decoder.") else f"encoder.{name}"
