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
from jobqueue.ordering import KEY_GATE
from jobqueue.stats.live import is_at_least
from jobqueue.stats.queues import QueueStats

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


_GATES: Mapping[int, StrOrPromise] = {
    KEY_GATE: _("by keys"),
    FLOW_GATE: _("by limits"),
    PARENTS_GATE: _("by parents"),
}


class Tile(NamedTuple):
    """`note` stands below the figure. `address`: "" if no list has what it counts. `kind`: "", "warn" or "bad"."""

    word: StrOrPromise
    figure: str
    note: str
    address: str
    kind: str = ""


def tiles(
    stats: Sequence[QueueStats] | None, held: HeldBack | None, workers: Workers | None, *, more: bool = False
) -> list[Tile]:
    """Those of jobs, if they were read, and those of workers. `more`: there are other queues."""
    found = [] if stats is None else _of_jobs(stats, workers, more)
    if held is not None and held.by_gate:
        found.append(_of_held_back(held))
    if workers is not None:
        found.append(_of_workers(workers))
    return found


def _of_jobs(stats: Sequence[QueueStats], workers: Workers | None, more: bool) -> list[Tile]:
    oldest = max((one.oldest_age_seconds for one in stats), default=0.0)
    dead = sum(one.dead_per_hour for one in stats)
    threads = workers.threads if workers else 0
    waits = gettext("oldest %(time)s") % {"time": span(oldest)} if oldest else ""
    of = gettext("of %(n)s threads") % {"n": number(threads)} if threads else ""
    lately, kind = (gettext("%(n)s in the last hour") % {"n": number(dead)}, "bad") if dead else ("", "")
    return [
        Tile(_("Ready"), _sum(stats, "ready", more), waits, list_address("job", state="ready")),
        Tile(_("Scheduled"), _sum(stats, "scheduled", more), "", list_address("job", state="scheduled")),
        *_of_held(stats, more),
        Tile(_("Running"), _sum(stats, "running", more), of, list_address("job", state="running")),
        Tile(_("Failed"), _sum(stats, "failed", more), lately, list_address("job", state="failed"), kind),
    ]


def _of_held(stats: Sequence[QueueStats], more: bool) -> list[Tile]:
    """The jobs that wait for a person, if there are some."""
    if not any(one.held for one in stats):
        return []
    held = _sum(stats, "held", more)
    return [Tile(_("Held"), held, gettext("after crashes"), list_address("job", state="held"), "warn")]


def _sum(stats: Sequence[QueueStats], name: str, more: bool) -> str:
    """The jobs of all queues, with "+" if there are more than are counted, or `more` queues than are read."""
    most = count_max(len(stats))
    capped = more or any(is_at_least(one, name, most) for one in stats)
    return number(sum(getattr(one, name) for one in stats)) + ("+" if capped else "")


def _of_held_back(held: HeldBack) -> Tile:
    """No list has these jobs: they are ready or scheduled, and counted as such, too."""
    more = "+" if held.capped else ""
    gates = ", ".join(f"{_GATES[gate]} {number(count)}" for gate, count in held.by_gate.items())
    note = gettext("among ready and scheduled: %(gates)s") % {"gates": gates}
    return Tile(_("Blocked"), number(sum(held.by_gate.values())) + more, note, "")


def _of_workers(workers: Workers) -> Tile:
    silent = gettext("%(n)s silent") % {"n": number(len(workers.silent))} if workers.silent else ""
    kind = "bad" if not workers.running else "warn" if workers.silent else ""
    return Tile(_("Workers"), number(workers.running), silent, list_address("worker"), kind)
