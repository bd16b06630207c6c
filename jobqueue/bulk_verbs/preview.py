"""What a bulk verb would do: how many jobs it would change, and some of these. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobqueue.bulk_verbs.filtering import changeable, check_filters, check_verb, matching
from jobqueue.bulk_verbs.walking import next_ids
from jobqueue.db.parts import lowest_ids
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout
from jobqueue.models import Job

#: jobs are counted up to this number
MATCHED_MAX = 10_000
#: of the count
COUNT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Preview:
    """`matched` is MATCHED_MAX if there are so many or more, and None if counting took too long."""

    matched: int | None
    until_id: int  # the newest job; those added later are not touched
    first: list[Job]  # the oldest that match; where not all are counted, some of them

    @property
    def is_capped(self) -> bool:
        """Whether there may be more than `matched`."""
        return self.matched is None or self.matched >= MATCHED_MAX


def preview(verb: str, filters: Mapping[str, str], *, first: int, using: str, until_id: int | None = None) -> Preview:
    """Count the jobs that match and that `verb` can change, and read up to `first` of them. Raises InvalidValue."""
    wanted = check_filters(filters)
    check_verb(verb, wanted)
    until = newest_id(using) if until_id is None else until_id
    matched, ids = _counted(verb, wanted, until, first, using)
    if matched is None:
        ids, _ = next_ids(verb, wanted, after_id=0, until_id=until, most=first, using=using) if first else ([], 0)
    rows = Job.objects.using(using).filter(pk__in=ids).order_by("pk")
    jobs = list(rows.only("pk", "queue", "task", "status", "run_at")) if ids else []
    return Preview(matched, until, jobs)


def count(verb: str, filters: Mapping[str, str], until_id: int, using: str) -> int | None:
    """How many match, up to MATCHED_MAX; None if that takes longer than COUNT_SECONDS."""
    return _counted(verb, filters, until_id, 0, using)[0]


def _counted(
    verb: str, filters: Mapping[str, str], until_id: int, first: int, using: str
) -> tuple[int | None, list[int]]:
    """The count, and the lowest ids of those that were counted."""
    rows = matching(filters, using, up_to=until_id).filter(changeable(verb, filters))
    try:
        with time_limit(COUNT_SECONDS, using=using):
            return lowest_ids(rows.only("pk")[:MATCHED_MAX], first)
    except StatementTimeout:
        return None, []


def newest_id(using: str) -> int:
    """The highest id of a job; 0 if there is none."""
    newest = Job.objects.using(using).order_by("-pk").values_list("pk", flat=True)[:1]
    return next(iter(newest), 0)
