"""The first job of an age: found by its primary key, because no index has created_at."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import read_now
from jobqueue.db.expressions import Slot
from jobqueue.db.prepared import Prepared, prepare_rows
from jobqueue.models import Job

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

AGES: dict[str, tuple[timedelta, StrOrPromise]] = {
    "15m": (timedelta(minutes=15), _("the last 15 minutes")),
    "1h": (timedelta(hours=1), _("the last hour")),
    "24h": (timedelta(hours=24), _("the last 24 hours")),
    "7d": (timedelta(days=7), _("the last 7 days")),
}
#: ids that one statement looks at: among 10 million ids, 6 statements find the first job of an age
PROBES = 15


def first_id(age: str, *, using: str) -> int:
    """The lowest id of the jobs that were added in this time, by the order of ids; 0 if none was.

    A search in 16 parts at a time: PROBES index seeks in a statement, and 1 statement for each 4 bits of the range of
    ids. It assumes that ids grow with time, as they do except for jobs of long transactions.
    """
    since = read_now(using) - AGES[age][0]
    last = Job.objects.using(using).order_by("-pk").values_list("pk", "created_at").first()
    if last is None or last[1] < since:
        return 0
    first = Job.objects.using(using).order_by("pk").values_list("pk", "created_at").first()
    if first is None or first[1] >= since:
        return int(first[0]) if first else 0
    return _between(int(first[0]), int(last[0]), since, using)


def _between(old: int, young: int, since: datetime, using: str) -> int:
    """The lowest id whose job is young enough, above the id `old`, whose job is not, up to `young`, whose job is."""
    found = young
    while young - old > 1:
        step = max(1, (young - old) // (PROBES + 1))
        places = [place for place in (old + step * n for n in range(1, PROBES + 1)) if place < young]
        # The first job at or above each place; several places may have the same one.
        jobs = sorted(_at_or_above(using).rows_of_each([{"place": place} for place in places]))
        for place in places:
            job_id, created_at = next(job for job in jobs if job[0] >= place)
            if created_at >= since:
                young, found = place, int(job_id)
                break
            old = max(old, int(job_id))
    return found


@cache
def _at_or_above(using: str) -> Prepared:
    rows = Job.objects.using(using).filter(pk__gte=Slot("place", Job._meta.get_field("id"))).order_by("pk")
    return prepare_rows(rows.values_list("pk", "created_at")[:1])
