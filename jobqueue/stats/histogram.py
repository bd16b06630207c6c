"""Times counted by fixed bounds, so that counts of many processes and minutes can be added up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

#: upper bound of each bucket in seconds; one more bucket has what is longer
BOUNDS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0,
)  # fmt: skip
BUCKETS = len(BOUNDS_SECONDS) + 1


def bucket_of(seconds: float) -> int:
    """The number of the bucket that counts `seconds`."""
    return bisect_left(BOUNDS_SECONDS, seconds)


def known(histogram: object) -> Iterator[tuple[int, int]]:
    """(Number of a bucket, count) of a stored histogram, without what a later version or plain SQL has written."""
    for number, count in histogram.items() if isinstance(histogram, dict) else ():
        if number.isdecimal() and int(number) < BUCKETS and type(count) is int:
            yield int(number), count


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The time that `share` (0 to 1) of the counted ones did not exceed, in seconds; None if nothing was counted.

    Interpolated within its bucket, as Prometheus' histogram_quantile() does; of the last bucket its lower bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for number, count in enumerate(counts[: len(BOUNDS_SECONDS)]):
        if count and below + count >= rank:
            lower = BOUNDS_SECONDS[number - 1] if number else 0.0
            return lower + (BOUNDS_SECONDS[number] - lower) * (rank - below) / count
        below += count
    return BOUNDS_SECONDS[-1]
