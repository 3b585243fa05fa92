"""What a loaded model carries: its source, how its input is made, what became of each tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vit.checkpoints.reading import first_few, size_text
from vit.errors import one_line
from vit.inputs import ModelInputs

if TYPE_CHECKING:
    from torchvision.transforms.v2 import Transform


Shape = tuple[int, ...]


@dataclass
class Report:
    """What became of every tensor of a checkpoint, and what was assumed.

    Attributes:
        used: their names -> ours, as they are.
        converted: our name -> (their names, what was done): rearranged, resized, folded.
        dropped: their name -> the reason.
        missing: our name -> its shape: not in the file, so untrained.
        unexpected: their names that are unknown.
        notes: what was assumed or changed, for the user.
        guesses: those of them that nothing in the checkpoint confirms, each a warning.
        problems: why the checkpoint cannot be loaded; empty if it can.
    """

    used: dict[str, str] = field(default_factory=dict)
    converted: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Shape] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a table: used tensors are counted, all others named, similar blocks together."""
        lines = [f"{'used as they are':<18} {_tensors(len(self.used))}"]

        # what was done to the others
        converted = []
        for ours, (theirs, change) in self.converted.items():
            converted.append(f"{', '.join(theirs)} -> {ours}: {change}")
        lines += _section("converted", len(self.converted), converted)

        # what was dropped, by its reason
        dropped: dict[str, list[str]] = {}
        for name, reason in self.dropped.items():
            dropped.setdefault(reason, []).append(name)
        reasons = [f"{first_few(names)}: {reason}" for reason, names in dropped.items()]
        lines += _section("dropped", len(self.dropped), reasons)

        # what has no partner
        missing = [f"{name} ({size_text(shape)})" for name, shape in self.missing.items()]
        lines += _section("missing, untrained", len(self.missing), missing)
        lines += _section("unexpected", len(self.unexpected), self.unexpected)

        for note in self.notes:
            kind = "guess" if note in self.guesses else "note"
            lines.append(f"{kind}: {one_line(note)}")
        lines += [f"cannot be loaded: {one_line(problem)}" for problem in self.problems]
        return "\n".join(lines)


def _section(title: str, count: int, details: list[str]) -> list[str]:
    """Return a part of the table; nothing for no tensors."""
    if not count:
        return []
    lines = [f"{title:<18} {_tensors(count)}"]
    for line in _ranges(details):
        lines.append(f"    {one_line(line)}")
    return lines


def _ranges(lines: list[str]) -> list[str]:
    """Join lines that differ only in the numbers within names: blocks.0-11.attn.qkv.weight."""
    # the lines with # for each number -> the numbers of each line
    number = re.compile(r"(?<=\.)\d+(?=\.)")
    groups: dict[str, list[list[int]]] = {}
    for line in lines:
        numbers = [int(digits) for digits in number.findall(line)]
        groups.setdefault(number.sub("#", line), []).append(numbers)

    # in place of each #, the range of its numbers
    result = []
    for text, rows in groups.items():
        for column in zip(*rows, strict=True):
            text = text.replace("#", _runs(set(column)), 1)
        result.append(text)
    return result


def _runs(numbers: set[int]) -> str:
    """Return numbers in order, those in a row as a range: 0-2, 5."""
    texts = []
    for first in sorted(numbers):
        if first - 1 in numbers:
            continue
        last = first
        while last + 1 in numbers:
            last += 1
        texts.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(texts)


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


@dataclass(frozen=True, kw_only=True)
class Origin(ModelInputs):
    """Where a model came from and how its input is made.

    This is the `origin` of every model from `load_model`.

    Attributes:
        source: the requested name or path.
        format: the file's format.
        class_names: of the head, or of the training data; empty if unknown.
        data: name of the training data; "" if unknown.
        data_content_hash: `vit.data.Dataset.content_hash` of the training and test images; "" if
            unknown.
        report: what became of each tensor.
        details: the checkpoint's whole config.json.
    """

    source: str
    format: str
    class_names: tuple[str, ...]
    data: str
    data_content_hash: str
    report: Report
    details: dict[str, Any]

    @property
    def problem_type(self) -> str:
        """What the head tells, as transformers calls it; "" for one of several classes.

        For example multi_label_classification.
        """
        problem_type = str(self.details.get("problem_type") or "")
        if problem_type == "single_label_classification":
            return ""
        return problem_type

    def was_tested_on(self, content_hash: str) -> bool:
        """Return whether its training held out the images with this hash.

        Args:
            content_hash: of the `vit.data.ImageSet`.
        """
        # the hash of the data is that of the training images, "-", that of the test images
        return self.data_content_hash.rpartition("-")[2] == content_hash

    @property
    def transform(self) -> Transform:
        """A torchvision v2 transform that makes the model's input, for a Dataset or a v2.Compose.

        PIL images of any mode and orientation become the model's input float32 (C, H, W), just as
        their files do by `read_images` and `normalize` (a large JPEG within rounding, because fewer
        pixels of its file are decoded); uint8 tensors (..., 3, h, w) or (..., 1, h, w) become
        (..., C, H, W), just as by `inputs`.

        Raises:
            DataError: (when called) other tensors, or the model takes neither colour nor grey
                images.
        """
        # torchvision's transforms take seconds to import
        from vit.checkpoints.transform import ModelTransform

        return ModelTransform(self)
