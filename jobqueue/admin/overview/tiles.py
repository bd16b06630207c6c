"""The figures at the top of the overview, each a link to what it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.overview.reading import HeldBack, Workers, count_max
from jobqueue.admin.page.addresses import list_address
from jobqueue.admin.page.formatting import number, span
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE
from jobqueue.ordering import KEY_GATE
from jobqueue.stats.queues import QueueStats

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


_GATES: Mapping[int, StrOrPromise] = {
    KEY_GATE: _("by keys"),
    FLOW_GATE: _("by limits"),
    HELD_GATE: _("after crashes"),
    PARENTS_GATE: _("by parents"),
}


class Tile(NamedTuple):
    """`note` stands below the figure. `address`: "" if no list has what it counts. `kind`: "", "warn" or "bad"."""

    word: StrOrPromise
    figure: str
    note: str
    address: str
    kind: str = ""


def tiles(stats: Sequence[QueueStats] | None, held: HeldBack | None, workers: Workers | None) -> list[Tile]:
    """Those of jobs, if they were read, and those of workers."""
    found = [] if stats is None else _of_jobs(stats, workers)
    if held is not None and held.by_gate:
        found.append(_of_held_back(held))
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
    values, most = [getattr(one, name) for one in stats], count_max(len(stats))
    return number(sum(values)) + ("+" if any(value >= most for value in values) else "")


def _of_held_back(held: HeldBack) -> Tile:
    """It leads to a list only if a crash holds all of its jobs: the list counts others as ready or scheduled."""
    more = "+" if held.capped else ""
    note = ", ".join(f"{_GATES[gate]} {number(count)}" for gate, count in held.by_gate.items())
    address = list_address("job", state="held") if {*held.by_gate} == {HELD_GATE} else ""
    kind = "warn" if HELD_GATE in held.by_gate else ""
    return Tile(_("Held back"), number(sum(held.by_gate.values())) + more, note, address, kind)


def _of_workers(workers: Workers) -> Tile:
    silent = gettext("%(n)s silent") % {"n": number(len(workers.silent))} if workers.silent else ""
    kind = "bad" if not workers.running else "warn" if workers.silent else ""
    return Tile(_("Workers"), number(workers.running), silent, list_address("worker"), kind)
