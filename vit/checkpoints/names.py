"""Tables of names: which tensor of a foreign format is which of ours.

One table serves both directions, in and out.
Our names are timm's for the encoder; the decoder's begin with `decoder.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from einops import rearrange
from torch import Tensor

# how a tensor's values change, in words for the user
NOTES = {
    "stack": "stacked on dimension 0",
    "pixels": "rows from (p q c) to (c p q): here a patch is flattened channel first",
    "sequence": "transposed from (N, 1, D)",
}


@dataclass(frozen=True)
class KeyRule:
    """A row of a table: a tensor, or one per layer, under our name and theirs.

    In both, `#` stands for a layer's number and `@` for "weight" or "bias"; in theirs, `*` stands
    for another number.

    Attributes:
        ours: our name.
        theirs: their name, or several whose tensors become ours.
        change: a key of `NOTES`.
    """

    ours: str
    theirs: tuple[str, ...]
    change: str = ""

    def filled(self, match: re.Match[str]) -> KeyRule:
        """Return the rule for one tensor, whose name matched the pattern of ours or of theirs."""

        def fill(name: str) -> str:
            template = name.replace("#", r"\g<block>").replace("*", r"\g<chunk>")
            return match.expand(template.replace("@", r"\g<kind>"))

        return KeyRule(fill(self.ours), tuple(map(fill, self.theirs)), self.change)

    def read(self, tensors: list[Tensor], channels: int) -> Tensor:
        """Turn theirs into ours; what changes is a new tensor, not a view of theirs.

        Args:
            tensors: theirs, in the order of the rule.
            channels: C of the images.
        """
        if self.change == "stack":
            return torch.cat(tensors)
        if self.change == "pixels":
            return rearrange(tensors[0], "(pixel c) ... -> (c pixel) ...", c=channels).clone()
        if self.change == "sequence":
            return tensors[0].transpose(0, 1).clone()
        return tensors[0]

    def write(self, tensor: Tensor, channels: int) -> list[Tensor]:
        """Turn ours into theirs, the inverse of `read` to the bit.

        Args:
            tensor: ours.
            channels: C of the images.
        """
        if self.change == "pixels":
            return [rearrange(tensor, "(c pixel) ... -> (pixel c) ...", c=channels)]
        return list(tensor.chunk(len(self.theirs)))


# ---- Tables --------------------------------------------------------------------------------------


def table(text: str) -> tuple[KeyRule, ...]:
    """Read a table: each line has our name, then theirs, or several of theirs to be stacked.

    A name alone is both ours and theirs. A word in parentheses at the end of a line is a change;
    several are stacked by default.
    """
    # several of theirs are stacked, as W_Q, W_K and W_V in one matrix
    rules = []
    for line in text.strip().splitlines():
        words, _, change = line.rstrip(" )").partition("(")
        ours, *theirs = words.split()
        if not change and len(theirs) > 1:
            change = "stack"
        rules.append(KeyRule(ours, tuple(theirs or [ours]), change))
    return tuple(rules)


def within(rules: Sequence[KeyRule], ours: str, *theirs: str) -> tuple[KeyRule, ...]:
    """Return the rows of a layer or another part as rows of its container.

    Args:
        rules: the rows.
        ours: the container's name in front of our names.
        theirs: the container's name in front of theirs; all rows once for each of several.
    """
    rows = []
    for container in theirs:
        for rule in rules:
            names = tuple(container + name for name in rule.theirs)
            rows.append(KeyRule(ours + rule.ours, names, rule.change))
    return tuple(rows)


# ---- Read a table --------------------------------------------------------------------------------


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return the regular expression of a name in a rule."""
    escaped = re.escape(name).replace("@", "(?P<kind>weight|bias)")
    escaped = escaped.replace(r"\#", r"(?P<block>\d{1,4})")
    return re.compile(escaped.replace(r"\*", r"(?P<chunk>\d{1,4})"))


def map_in(rules: Iterable[KeyRule], keys: Iterable[str]) -> dict[str, KeyRule]:
    """Read a table from theirs to ours.

    Args:
        rules: the table; it may give several spellings of a name.
        keys: names of their tensors.

    Returns:
        The rules that apply, by our names. The parts of a stack that is not complete have none, nor
        has a second spelling of what is there already.
    """
    # each name of theirs leads to its row; the order of the table decides
    keys = dict.fromkeys(keys)
    patterns = [(_pattern(name), rule) for rule in rules for name in rule.theirs]
    result: dict[str, KeyRule] = {}
    for key in keys:
        for pattern, row in patterns:
            match = pattern.fullmatch(key)
            if not match:
                continue
            # the row for this tensor, whose parts must all be there
            rule = row.filled(match)
            if all(name in keys for name in rule.theirs):
                result.setdefault(rule.ours, rule)
                break
    return result


def map_out(
    rules: Sequence[KeyRule], state: Mapping[str, Tensor], channels: int
) -> tuple[dict[str, Tensor], list[str]]:
    """Read a table from ours to theirs, using the first of several spellings.

    Args:
        rules: the table.
        state: tensors by our names.
        channels: C of the images.

    Returns:
        The tensors under their names, and our names for which the format has no place.
    """
    tensors: dict[str, Tensor] = {}
    unmapped: list[str] = []
    for name, tensor in state.items():
        matches = ((_pattern(rule.ours).fullmatch(name), rule) for rule in rules)
        rule = next((rule.filled(match) for match, rule in matches if match), None)
        if rule is None:
            unmapped.append(name)
            continue
        # one tensor, or the parts of a stack
        parts = rule.write(tensor, channels)
        for key, part in zip(rule.theirs, parts, strict=True):
            tensors[key] = part.contiguous()
    return tensors, unmapped
