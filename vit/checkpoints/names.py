"""Tables of names: which tensor of a foreign format is which of ours.

One table serves both directions, in and out.
Our names are timm's for the encoder; the decoder's begin with `decoder.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.errors import CheckpointError

# how a tensor's values change, in words for the user
NOTES = {
    "": "",
    "stack": "stacked on dimension 0",
    "normalised weight": "with the batch norm before it folded in",
    "normalised bias": "with the batch norm before it folded in",
    "zeros": "zeros: its layer has no bias",
    "pixels": "rows from (p q c) to (c p q): here a patch is flattened channel first",
    "sequence": "transposed from (N, 1, D)",
}


@dataclass(frozen=True)
class KeyRule:
    """A row of a table: a tensor, or one per block, under our name and theirs.

    In both, `#` stands for a block's number and `@` for "weight" or "bias"; in theirs, `*` stands
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
        # a pattern may lack either placeholder
        groups = match.groupdict()
        block = str(int(groups.get("block") or 0))
        kind = groups.get("kind") or ""

        def fill(name: str) -> str:
            return name.replace("#", block).replace("@", kind)

        return KeyRule(fill(self.ours), tuple(map(fill, self.theirs)), self.change)

    def read(self, tensors: list[Tensor], channels: int, eps: float | None = None) -> Tensor:
        """Turn theirs into ours.

        Args:
            tensors: theirs, in the order of the rule.
            channels: C of the images.
            eps: of a batch norm to fold; None if unknown.
        """
        if self.change == "stack":
            return torch.cat(tensors)
        if self.change == "normalised weight":
            return _fold_weight([tensor.float() for tensor in tensors], eps)
        if self.change == "normalised bias":
            return _fold_bias([tensor.float() for tensor in tensors], eps)
        if self.change == "zeros":
            return tensors[0].new_zeros(len(tensors[0]))
        if self.change == "pixels":
            return rearrange(tensors[0], "(pixel c) ... -> (c pixel) ...", c=channels)
        if self.change == "sequence":
            return tensors[0].transpose(0, 1)
        return tensors[0]

    def write(self, tensor: Tensor, channels: int) -> list[Tensor]:
        """Turn ours into theirs, the inverse of `read` to the bit.

        Args:
            tensor: ours.
            channels: C of the images.
        """
        if self.change == "stack":
            return list(tensor.chunk(len(self.theirs)))
        if self.change == "pixels":
            return [rearrange(tensor, "(c pixel) ... -> (pixel c) ...", c=channels)]
        return [tensor]


# ---- A batch norm, folded into the linear layer after it -----------------------------------------


def _fold_weight(tensors: list[Tensor], eps: float | None) -> Tensor:
    """Return the weight (K, D) of the layer and of the batch norm before it together.

    Args:
        tensors: the layer's weight (K, D), the norm's variance and, if it has one, its scale (D).
        eps: of the norm; None means MAE's or, for a norm with a scale, torch's.
    """
    weight = tensors[0]
    variance = tensors[1]
    scale = tensors[2] if len(tensors) > 2 else None
    if eps is None:
        eps = 1e-6 if scale is None else 1e-5
    # the norm divides a column of the weight as it would divide a feature
    return F.batch_norm(weight, torch.zeros_like(variance), variance, scale, eps=eps)


def _fold_bias(tensors: list[Tensor], eps: float | None) -> Tensor:
    """Return the bias (K) of the layer and of the batch norm before it together.

    Args:
        tensors: the layer's weight (K, D), the norm's variance and mean (D), the layer's bias (K)
            and, if the norm has them, its scale and shift (D).
        eps: of the norm; None means MAE's or, for a norm with a scale, torch's.
    """
    # W (scale (x - mean) / std + shift) + b = (folded W) x + (b - (folded W) mean + W shift)
    weight, variance, mean, bias = tensors[:4]
    scale = tensors[4:5]
    shift = tensors[5:]
    folded = bias - _fold_weight([weight, variance, *scale], eps) @ mean
    if shift:
        folded = folded + weight @ shift[0]
    return folded


# ---- Tables --------------------------------------------------------------------------------------


def table(text: str) -> tuple[KeyRule, ...]:
    """Read a table: each line has our name, then theirs, or several of theirs to be stacked.

    A word in parentheses at the end of a line is a change; several are stacked by default.
    """
    # several of theirs are stacked, as W_Q, W_K and W_V in one matrix
    rules = []
    for line in text.strip().splitlines():
        words, _, change = line.rstrip(" )").partition("(")
        ours, *theirs = words.split()
        if not change and len(theirs) > 1:
            change = "stack"
        rules.append(KeyRule(ours, tuple(theirs), change))
    return tuple(rules)


def shared(names: str) -> tuple[KeyRule, ...]:
    """Return the rows for space-separated names that are both ours and theirs."""
    return tuple(KeyRule(name, (name,)) for name in names.split())


def within(rules: Iterable[KeyRule], ours: str, theirs: str) -> tuple[KeyRule, ...]:
    """Return the rows of a block or another part as those of what contains it.

    Args:
        rules: the rows.
        ours: the container's name in front of our names.
        theirs: the container's name in front of theirs.
    """
    result = []
    for rule in rules:
        names = tuple(theirs + name for name in rule.theirs)
        result.append(KeyRule(ours + rule.ours, names, rule.change))
    return tuple(result)


# ---- Read a table --------------------------------------------------------------------------------


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return the regular expression of a name in a rule."""
    escaped = re.escape(name).replace(r"\#", r"(?P<block>\d{1,4})").replace(r"\*", r"\d{1,4}")
    return re.compile(escaped.replace("@", "(?P<kind>weight|bias)"))


def map_in(rules: Iterable[KeyRule], keys: Iterable[str]) -> tuple[dict[str, KeyRule], list[str]]:
    """Read a table from theirs to ours.

    Args:
        rules: the table; it may give several spellings of a name.
        keys: names of their tensors.

    Returns:
        The rules that apply, by our names, and the keys without a rule. The parts of a stack that
        is not complete have none.

    Raises:
        CheckpointError: two of their tensors claim the same name of ours.
    """
    # each name of theirs leads to its row; the order of the table decides
    keys = dict.fromkeys(keys)
    patterns = [(_pattern(name), rule) for rule in rules for name in rule.theirs]
    result: dict[str, KeyRule] = {}
    mapped: set[str] = set()
    for key in keys:
        for pattern, row in patterns:
            match = pattern.fullmatch(key)
            if not match:
                continue
            # the row for this tensor, whose parts must all be there
            rule = row.filled(match)
            if len(rule.theirs) == 1:
                # a `*` in the name stands for a number that `filled` does not know
                rule = replace(rule, theirs=(key,))
            if not all(name in keys for name in rule.theirs):
                continue

            # the first row that fits; each part of a stack leads to the same rule
            if result.setdefault(rule.ours, rule) != rule:
                raise CheckpointError(
                    f"{result[rule.ours].theirs[0]} and {key} are both {rule.ours}; keep one"
                )
            mapped.update(rule.theirs)
            break
    return result, [key for key in keys if key not in mapped]


def map_out(
    rules: Iterable[KeyRule], state: Mapping[str, Tensor], channels: int
) -> tuple[dict[str, Tensor], list[str]]:
    """Read a table from ours to theirs, using the first of several spellings.

    Args:
        rules: the table.
        state: tensors by our names.
        channels: C of the images.

    Returns:
        The tensors under their names, and our names for which the format has no place.
    """
    rules = list(rules)
    tensors: dict[str, Tensor] = {}
    unmapped: list[str] = []
    for name, tensor in state.items():
        rule = _rule_for(name, rules)
        if rule is None:
            unmapped.append(name)
            continue
        # one tensor, or the parts of a stack
        parts = rule.write(tensor, channels)
        for key, part in zip(rule.theirs, parts, strict=True):
            tensors[key] = part.contiguous()
    return tensors, unmapped


def _rule_for(name: str, rules: list[KeyRule]) -> KeyRule | None:
    """Return the first rule for one of our names, filled; None if the table has none."""
    for rule in rules:
        match = _pattern(rule.ours).fullmatch(name)
        if match:
            return rule.filled(match)
    return None
