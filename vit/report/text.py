"""Numbers and lists in words."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 2 h 5 min."""
    total = max(round(seconds), 0)
    units = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
    for unit, length, smaller_unit, smaller_length in units:
        if total >= length:
            text = f"{total // length} {unit}"
            smaller = total % length // smaller_length
            if smaller:
                text += f" {smaller} {smaller_unit}"
            return text
    return f"{total} s"


def enumerated(names: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    *first, last = names
    if not first:
        return last
    return f"{', '.join(first)} and {last}"
