"""Tables of names: which tensor of a foreign format is which of ours. One table serves both directions, in and out.

Our names are timm's for the encoder; the decoder's begin with `decoder.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.errors import CheckpointError

NOTES = {
    "": "",
    "stack": "stacked on dimension 0",
    "normalised weight": "with the batch norm before it folded in",
    "normalised bias": "with the batch norm before it folded in",
    "pixels": "rows from (p q c) to (c p q): here a patch is flattened channel first",
}
"""How a tensor's values change, in words for the user."""


@dataclass(frozen=True)
class KeyRule:
    """A row of a table: a tensor, or one per block, under our name and theirs.

    In both, `#` stands for a block's number and `@` for "weight" or "bias"; in theirs, `*` stands for another number.

    Attributes:
        ours: our name.
        theirs: their name, or several whose tensors ours stacks.
        change: a key of `NOTES`.
    """

    ours: str
    theirs: tuple[str, ...]
    change: str = ""

    def filled(self, match: re.Match[str], theirs: tuple[str, ...] = ()) -> KeyRule:
        """Return the rule for the one tensor whose name matched."""
        found = match.groupdict()

        def fill(name: str) -> str:
            return name.replace("#", str(int(found.get("block") or 0))).replace(
                "@", found.get("kind") or ""
            )

        return KeyRule(fill(self.ours), theirs or tuple(map(fill, self.theirs)), self.change)

    def read(self, tensors: list[Tensor], channels: int, eps: float | None = None) -> Tensor:
        """Turn theirs into ours; `channels` is C of the images, `eps` of a batch norm to fold, None if unknown."""
        if self.change == "stack":
            return torch.cat(tensors)
        if self.change == "normalised weight":
            return _fold_weight(eps, *(tensor.float() for tensor in tensors))
        if self.change == "normalised bias":
            return _fold_bias(eps, *(tensor.float() for tensor in tensors))
        if self.change == "pixels":
            return rearrange(tensors[0], "(pixel c) ... -> (c pixel) ...", c=channels)
        return tensors[0]

    def write(self, tensor: Tensor, channels: int) -> list[Tensor]:
        """Turn ours into theirs, the inverse of `read` to the bit."""
        if self.change == "stack":
            return list(tensor.chunk(len(self.theirs)))
        if self.change == "pixels":
            return [rearrange(tensor, "(c pixel) ... -> (pixel c) ...", c=channels)]
        return [tensor]


def _fold_weight(
    eps: float | None, weight: Tensor, variance: Tensor, scale: Tensor | None = None
) -> Tensor:
    """Fold a batch norm into the weight of the linear layer after it; without an eps, by MAE's or, with a scale, torch's."""
    eps = eps or (1e-6 if scale is None else 1e-5)
    return F.batch_norm(weight, torch.zeros_like(variance), variance, scale, eps=eps)


def _fold_bias(
    eps: float | None, weight: Tensor, variance: Tensor, mean: Tensor, bias: Tensor, *affine: Tensor
) -> Tensor:
    """Fold a batch norm into the bias of the linear layer after it; `affine` is its scale and shift, if it has them."""
    folded = _fold_weight(eps, weight, variance, *affine[:1])
    return bias - folded @ mean + sum(weight @ shift for shift in affine[1:])


def table(text: str) -> tuple[KeyRule, ...]:
    """Read a table: each line has our name, then theirs, or several of theirs to be stacked.

    "(pixels)" at the end of a line means that the order of pixels differs.
    """
    rules = []
    for line in text.strip().splitlines():
        ours, *theirs = line.replace("(pixels)", "").split()
        change = "pixels" if "(pixels)" in line else "stack" if len(theirs) > 1 else ""
        rules.append(KeyRule(ours, tuple(theirs), change))
    return tuple(rules)


def shared(names: str) -> tuple[KeyRule, ...]:
    """Return the rows for space-separated names that are both ours and theirs."""
    return tuple(KeyRule(name, (name,)) for name in names.split())


def within(rules: Iterable[KeyRule], ours: str, theirs: str) -> tuple[KeyRule, ...]:
    """Return a block's rows as a model's, with the container's name in front."""
    return tuple(
        KeyRule(ours + r.ours, tuple(theirs + name for name in r.theirs), r.change) for r in rules
    )


@cache
def _pattern(name: str) -> re.Pattern[str]:
    escaped = re.escape(name).replace(r"\#", r"(?P<block>\d{1,4})").replace(r"\*", r"\d{1,4}")
    return re.compile(escaped.replace("@", "(?P<kind>weight|bias)"))


def map_in(rules: Iterable[KeyRule], keys: Iterable[str]) -> tuple[dict[str, KeyRule], list[str]]:
    """Read a table from theirs to ours.

    Args:
        rules: the table; it may give several spellings of a name.
        keys: names of their tensors.

    Returns:
        The rules that apply, by our names, and the unknown keys. A stack with a missing part counts as unknown.

    Raises:
        CheckpointError: two of their tensors claim the same name of ours.
    """
    keys = dict.fromkeys(keys)
    patterns = [(_pattern(name), r) for r in rules for name in r.theirs]
    found: dict[str, KeyRule] = {}
    known: set[str] = set()
    for key in keys:
        for pattern, r in patterns:
            match = pattern.fullmatch(key)
            rule = r.filled(match, (key,) if len(r.theirs) == 1 else ()) if match else None
            if rule is None or not all(name in keys for name in rule.theirs):
                continue
            if found.setdefault(rule.ours, rule) != rule:
                raise CheckpointError(
                    f"{found[rule.ours].theirs[0]} and {key} are both {rule.ours}; keep one"
                )
            known.update(rule.theirs)
            break
    return found, [key for key in keys if key not in known]


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
    patterns = [(_pattern(r.ours), r) for r in rules]
    tensors: dict[str, Tensor] = {}
    unmapped: list[str] = []
    for name, tensor in state.items():
        matches = ((pattern.fullmatch(name), r) for pattern, r in patterns)
        rule = next((r.filled(match) for match, r in matches if match), None)
        if rule is None:
            unmapped.append(name)
        else:
            parts = rule.write(tensor, channels)
            tensors |= {
                theirs: part.contiguous() for theirs, part in zip(rule.theirs, parts, strict=True)
            }
    return tensors, unmapped
