"""A checkpoint format: its marks, its table of names, and its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from vit.checkpoints.names import KeyRule
from vit.checkpoints.reading import Source
from vit.config import Number, PositiveFloat, Settings, Share, pair

# mean and std of the input
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def _sides(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return settings of an architecture; a size given as one number is a square."""
    sizes = architecture.keys() & {"image_size", "patch_size"}
    return architecture | {key: pair(architecture[key]) for key in sizes}


class Hints(Settings):
    """The information in a checkpoint's settings; the tensors give the rest.

    The model built from both checks the architecture.
    """

    encoder: Annotated[dict[str, Any], AfterValidator(_sides)] = Field(default_factory=dict)
    """settings of `ViTConfig`; they must agree with the tensors"""
    decoder: dict[str, Any] = Field(default_factory=dict)
    """settings of `DecoderConfig`; they must agree with the tensors"""
    norm_pix_loss: bool | None = None
    """whether the decoder predicts normalised patches; None if unknown"""
    mean: tuple[Number, ...] = ()
    """of the input; empty if unknown"""
    std: tuple[PositiveFloat, ...] = ()
    """of the input; empty if unknown"""
    interpolation: Any = None
    """how the input is resized, as the settings call it; None if unknown"""
    class_names: tuple[Any, ...] = ()
    """names of the head's classes; not pydantic's strings, because folder names need not be
    UTF-8"""
    crop_share: Share | None = None
    """fraction to keep of an image's centred part; None if unknown"""
    squash: bool = False
    """whether images of another shape are squashed, not cropped"""
    prepared_size: tuple[int, int] | None = None
    """(H, W) of the images that the settings prepare, if it differs from the model's"""
    differences: tuple[str, ...] = ()
    """requests in the settings that are not, or perhaps not, carried out here; each is a warning"""
    usual_input: Any = None
    """mean and std usual for its family, if this model's are not given"""
    code: Literal["", "form", "named"] = ""
    """how known code shows, whose blocks are all of the kind computed here: by the file's form, or
    by the name of an architecture of its in the file; "" if it does not"""
    head_problem: str = ""
    """other operations of its code between the final norm and the head; "" for none"""
    twin: Any = None
    """a small timm model that computes as the one in the settings; None for none"""


def class_names(labels: Mapping[Any, Any] | Iterable[Any]) -> tuple[str, ...]:
    """Return the names of classes; none if transformers made them up: LABEL_0, LABEL_1, ...

    Args:
        labels: the names; or a dict keyed by numbers, or by WordNet's codes in the order of the
            classes.
    """
    if isinstance(labels, Mapping):
        keys = sorted(labels, key=lambda key: int(key) if str(key).isdecimal() else 0)
        labels = [labels[key] for key in keys]
    names = tuple(map(str, labels))
    if all(name.startswith("LABEL_") for name in names):
        return ()
    return names


def only_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class Format:
    """A checkpoint format.

    Attributes:
        name: for the user.
        rules: the table of names.
        anchor: regular expression for the end of the patch embedding's key, by default under timm's
            name; what precedes it is the prefix.
        marks: regular expression that must match a key, whole or after the prefix, a name in
            `Source.values`, "config.json says FORMAT", or "arch NAME"; by default, any does.
        hints: reads the settings, and returns values of `Hints`.
        global_pool: what the head reads in every model of this format; "" if it varies.
        heads: of its code, by width, where others have another number.
        norm_eps, interpolation, crop_share: the values if the settings do not say.
        usual_input: mean and std of the input, likewise.
        other_inputs: on which models of this format use another mean and std, if any do.
    """

    name: str
    rules: tuple[KeyRule, ...]
    anchor: str = r"patch_embed\.proj\.weight"
    marks: str = ".*"
    hints: Callable[[Source], dict[str, Any]] = lambda source: {}
    global_pool: str = ""
    heads: Mapping[int, int] = field(default_factory=dict)
    # most formats are for models trained on ImageNet by code that uses its mean
    norm_eps: float = 1e-6
    usual_input: tuple[tuple[float, ...], ...] = IMAGENET
    interpolation: str = "bicubic"
    crop_share: float = 1.0
    other_inputs: str = ""

    def marked(self, source: Source, prefix: str) -> bool:
        """Return whether the tensors under `prefix`, or the settings, mark this format."""
        names = [
            *(key.removeprefix(prefix) for key in source.tensors),
            *source.tensors,
            *source.values,
            f"config.json says {source.config.get('format')}",
            f"arch {source.values.get('arch')}",
        ]
        return any(re.fullmatch(self.marks, name) for name in names)
