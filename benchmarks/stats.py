"""Medians, spreads and percentiles; None without values."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

Number = float | int


def spread(values: Sequence[Number | None]) -> dict[str, Any] | None:
    """Median, smallest and largest."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": digits(median(known)), "min": digits(min(known)), "max": digits(max(known)), "n": len(known)}


def ratios(ours: Sequence[Number | None], theirs: Sequence[Number | None]) -> dict[str, Any] | None:
    """Ours / theirs by round: what affects a whole round, such as a busy machine, cancels out."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b])


def percentiles(values: Sequence[Number], wanted: Sequence[int] = (50, 95, 99)) -> dict[str, float] | None:
    """Nearest-rank percentiles."""
    if not values:
        return None
    ordered = sorted(values)
    return {f"p{p}": digits(ordered[min(len(ordered) - 1, len(ordered) * p // 100)]) for p in wanted}


def digits(value: Number) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
