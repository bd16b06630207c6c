"""In words: whether a worker runs, what it is short of, and what happens to its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import NOTHING, badge, plain, span
from jobqueue.admin.page.readonly import Facts
from jobqueue.maintenance.worker_list import state_of
from jobqueue.models import Worker


class WorkerFacts(Facts):
    """What pages read with a worker: also the number of jobs that it holds."""

    jobs: int


if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise, WithAnnotations

    ShownWorker = WithAnnotations[Worker, WorkerFacts]

_SHORT: dict[str, StrOrPromise] = {
    "memory": _("short of memory"),
    "descriptors": _("short of file descriptors"),
    "disk": _("short of disk space"),
    "commit": _("the database commits slowly"),
    "stalled": _("claims nothing although jobs are due"),
}
REASON_CHARS = 200
#: a larger difference to the clock of the database is shown
CLOCK_SECONDS = 0.5


def state_badge(worker: ShownWorker) -> str:
    """Whether the worker runs, sends no heartbeats, or has stopped, and why."""
    if worker.stopped_at is not None:
        reason = {"reason": plain(worker.stop_reason or NOTHING, REASON_CHARS)}
        return badge("done", gettext("stopped: %(reason)s") % reason)
    silent = state_of(worker, worker.now) == "silent"
    return badge("expired", gettext("no heartbeat")) if silent else badge("running", gettext("running"))


def troubles(worker: ShownWorker) -> list[str]:
    """What its monitor has found to be wrong with it."""
    # A worker of another release may have written it.
    found = worker.troubles if isinstance(worker.troubles, dict) else {}
    return [str(word) for name, word in _SHORT.items() if name in found]


def clock(worker: ShownWorker) -> str:
    """How far the clock of its host is from the database's; "" if that does not matter."""
    ahead = worker.clock_ahead_seconds or 0.0
    if abs(ahead) < CLOCK_SECONDS:
        return ""
    words = gettext("%(time)s ahead of the database") if ahead > 0 else gettext("%(time)s behind the database")
    return words % {"time": span(ahead)}


def what_next(worker: ShownWorker) -> str:
    """A sentence about the jobs of a silent or stopped worker: what happens to them next. "" for one that runs."""
    if worker.stopped_at is not None:
        return gettext("It has stopped. Its jobs run again when their leases have ended.") if worker.jobs else ""
    if state_of(worker, worker.now) != "silent":
        return ""
    facts = {"time": span((worker.now - worker.heartbeat_at).total_seconds())}
    return gettext("No heartbeat for %(time)s. If it is dead, its jobs run again when their leases have ended.") % facts
