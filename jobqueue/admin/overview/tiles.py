"""The figures at the top of the overview, each a link to what it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.overview.reading import COUNT_MAX, Workers
from jobqueue.admin.page.addresses import list_address
from jobqueue.admin.page.formatting import number, span
from jobqueue.stats.queues import QueueStats

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class Tile(NamedTuple):
    """`note` stands below the figure. `kind`: "", "warn" or "bad"."""

    word: StrOrPromise
    figure: str
    note: str
    address: str
    kind: str = ""


def tiles(stats: Sequence[QueueStats] | None, workers: Workers | None, may: Mapping[str, bool]) -> list[Tile]:
    """Those of jobs, if they were read, and those of workers."""
    found = [] if stats is None else _of_jobs(stats, workers)
    if workers is not None:
        found.append(_of_workers(workers))
    return found


def _of_jobs(stats: Sequence[QueueStats], workers: Workers | None) -> list[Tile]:
    oldest = max((one.oldest_age_seconds for one in stats), default=0.0)
    dead = sum(one.dead_per_hour for one in stats)
    threads = workers.threads if workers else 0
    waits = gettext("oldest %(time)s") % {"time": span(oldest)} if oldest else ""
    of = gettext("of %(n)s threads") % {"n": number(threads)} if threads else ""
    lately = gettext("%(n)s in the last hour") % {"n": number(dead)} if dead else ""
    return [
        Tile(_("Ready"), _sum(stats, "ready"), waits, list_address("job", state="ready")),
        Tile(_("Scheduled"), _sum(stats, "scheduled"), "", list_address("job", state="scheduled")),
        Tile(_("Running"), _sum(stats, "running"), of, list_address("job", state="running")),
        Tile(_("Failed"), _sum(stats, "failed"), lately, list_address("job", state="failed"), "bad" if dead else ""),
    ]


def _sum(stats: Sequence[QueueStats], name: str) -> str:
    """The jobs of all queues, with "+" if one of them has more than are counted."""
    values = [getattr(one, name) for one in stats]
    return number(sum(values)) + ("+" if any(value >= COUNT_MAX for value in values) else "")


def _of_workers(workers: Workers) -> Tile:
    silent = gettext("%(n)s silent") % {"n": number(workers.silent)} if workers.silent else ""
    kind = "bad" if not workers.running else "warn" if workers.silent else ""
    return Tile(_("Workers"), number(workers.running), silent, list_address("worker"), kind)
