"""The classes of the errors that jobs failed with lately. Only attempts have this column, so attempts are read."""

from __future__ import annotations

from jobqueue.models import JobAttempt

#: the newest failed attempts that are looked at
ATTEMPTS_MAX = 1000


def error_classes(*, using: str) -> list[str]:
    """The classes of the newest ATTEMPTS_MAX failed attempts, the most frequent first."""
    counts: dict[str, int] = {}
    for name, _ in _newest(using):
        if name:
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


def fingerprints_of(error_class: str, *, using: str) -> list[str]:
    """The fingerprints of those attempts whose error has this class, with its module or without."""
    return sorted({mark for name, mark in _newest(using) if mark and error_class in (name, name.rpartition(".")[2])})


def _newest(using: str) -> list[tuple[str, str | None]]:
    rows = JobAttempt.objects.using(using).order_by("-pk").values_list("error_class", "fingerprint")
    return list(rows[:ATTEMPTS_MAX])
