"""A checkpoint format: how to recognise it, its table of names, and what its settings say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, GetPydanticSchema, create_model
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import nn

from vit.checkpoints.names import KeyRule
from vit.checkpoints.reading import Source
from vit.config import Number, PositiveFloat, Share, ViTConfig

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

# each setting that is given is of its type and range; a decoder's width is called dim
_TYPES: Any = {
    key: (item.rebuild_annotation(), None) for key, item in ViTConfig.model_fields.items()
}
_TYPES["dim"] = _TYPES["embed_dim"]
_GIVEN = create_model("Architecture", __config__=ConfigDict(extra="forbid"), **_TYPES)
Architecture = Annotated[
    dict[str, Any],
    GetPydanticSchema(lambda _, make: make(_GIVEN)),
    AfterValidator(lambda values: values.model_dump(exclude_unset=True)),
]
Names = tuple[Any, ...]
"""Texts: pydantic's are UTF-8, and names of classes, which were folders, need not be."""


@checked_dataclass(frozen=True, config=ConfigDict(arbitrary_types_allowed=True))
class Hints:
    """What a checkpoint's settings say; the tensors say the rest.

    Attributes:
        encoder: settings of `ViTConfig`; they must agree with the tensors.
        decoder: settings of `DecoderConfig`; they must agree with the tensors.
        norm_pix_loss: whether the decoder predicts normalised patches; None if unknown.
        mean, std: of the input; None if unknown.
        interpolation: how the input is resized, as the settings call it; None if unknown.
        class_names: of the head.
        crop_share: share to keep of an image's centred part; None if unknown.
        squash: whether images of another shape are squashed, not cropped.
        prepared_size: (H, W) of the images that the settings make, if it is not the model's.
        blocks_known: whether it is known what code made the file, whose blocks are all of the kind
            computed here.
        code_heads: heads by width in that code.
        head_problem: what else its code computes between the final norm and the head; "" for
            nothing.
        notes: for the user.
        twin: a small model of timm's that computes as one that the settings describe.
        differences: what the settings request but is not done here, or may not be; each is a
            warning.
    """

    encoder: Architecture = field(default_factory=dict)
    decoder: Architecture = field(default_factory=dict)
    norm_pix_loss: bool | None = None
    mean: Annotated[tuple[Number, ...], Field(min_length=1)] | None = None
    std: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None = None
    interpolation: Any = None
    class_names: Names = ()
    notes: Names = ()
    differences: Names = ()
    crop_share: Share | None = None
    squash: bool = False
    prepared_size: tuple[int, int] | None = None
    blocks_known: bool = False
    code_heads: Mapping[int, int] = field(default_factory=dict)
    head_problem: str = ""
    twin: nn.Module | None = None


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
        anchor: regular expression for the end of the patch embedding's key; what precedes it is the
            prefix.
        marks: regular expressions; one of them must match a key after the prefix, a name in
            `Source.values`, "config.json says FORMAT", or "arch NAME".
        around: regular expressions of whole keys, which may stand beside the network; they are
            marks, too.
        rules: the table of names.
        dropped: regular expressions of keys to leave out, each with the reason.
        hints: reads the settings.
        global_pool: what the head reads in every model of this format; "" if it varies.
        norm_eps, mean, std, interpolation, crop_share: the values if the settings do not say.
        other_inputs: a sentence on which models of this format use another mean and std; if any do,
            assuming the usual ones is a guess.
    """

    name: str
    anchor: str
    rules: tuple[KeyRule, ...]
    marks: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    hints: Callable[[Source], Hints] = lambda source: Hints()
    global_pool: str = ""
    # most of the formats are of models trained on ImageNet by code that uses its mean
    norm_eps: float = 1e-6
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]
    interpolation: str = "bicubic"
    crop_share: float = 1.0
    other_inputs: str = ""

    def marked(self, source: Source, prefix: str) -> bool:
        """Return whether the tensors under `prefix`, or the settings, mark this format."""
        if not self.marks and not self.around:
            return True
        if any(re.fullmatch("|".join(self.around), key) for key in source.tensors):
            return True
        # a mark is a regular expression for the name of a tensor or of a value
        names = [key.removeprefix(prefix) for key in source.tensors if key.startswith(prefix)]
        names += source.values
        names.append(f"config.json says {source.config.get('format')}")
        names.append(f"arch {source.values.get('arch')}")
        pattern = re.compile("|".join(self.marks))
        return any(pattern.fullmatch(name) for name in names)


def first_reason(patterns: Iterable[tuple[str, str]], key: str) -> str:
    """Return the reason beside the first regular expression that `key` matches; "" for none."""
    for pattern, reason in patterns:
        if re.fullmatch(pattern, key):
            return reason
    return ""
