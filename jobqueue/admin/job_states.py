"""The words for a job's state: the status, seen against the clock; one vocabulary for list, filter and page."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.formatting import plain, span
from jobqueue.conf import load
from jobqueue.models import Job, LaneEntry

LABELS: dict[str, Any] = {
    "ready": _("ready"),
    "scheduled": _("scheduled"),
    "running": _("running"),
    "expired": _("lease ran out"),
    "failed": _("failed"),
    "canceled": _("canceled"),
    "done": _("done"),
}
_ENDED = {Job.Status.FAILED: "failed", Job.Status.CANCELED: "canceled", Job.Status.DONE: "done"}

#: which verb can change a job in which of these states; transitions decide again
VERBS: dict[str, tuple[str, ...]] = {
    "ready": ("cancel", "discard"),
    "scheduled": ("retry", "cancel", "discard"),
    "running": ("cancel", "release"),
    "expired": ("cancel", "release"),
    "failed": ("retry", "discard"),
    "canceled": ("retry",),
    "done": (),
}


def state_of(job: Any) -> str:
    """The key in LABELS for a job that was read with `now`."""
    if job.status == Job.Status.READY:
        return "scheduled" if job.run_at > job.now else "ready"
    if job.status == Job.Status.PROCESSING:
        return "expired" if job.lock_until < job.now else "running"
    return _ENDED[job.status]


def words(job: Any) -> str:
    """The state, and whether the job was asked to stop."""
    label = str(LABELS[state_of(job)])
    if job.status == Job.Status.PROCESSING and job.cancel_requested_at is not None:
        return gettext("%(state)s, asked to stop") % {"state": label}
    return label


def what_next(job: Any) -> str:
    """What will happen to a job if nobody interferes."""
    state = state_of(job)
    if state in ("ready", "scheduled"):
        return _waiting(job, state)
    if state == "expired":
        return gettext("Its lease has run out; the next reaper gives it back or, without attempts left, ends it.")
    if state == "running":
        text = gettext("Its worker renews the lease while it runs; without renewal the job is given back in %(time)s.")
        return text % {"time": span((job.lock_until - job.now).total_seconds())}
    if state == "failed" and _holds_up_its_key(job):
        return gettext("Nothing, until somebody retries or discards it; jobs with its ordering key wait for that.")
    if state == "failed":
        return gettext("Nothing, until somebody retries or discards it.")
    return gettext("Nothing: it has ended.")


def _holds_up_its_key(job: Any) -> bool:
    places = LaneEntry.objects.using(load().database)
    return job.ordering_key is not None and places.filter(job_id=job.pk).exists()


def _waiting(job: Any, state: str) -> str:
    facts = {"queue": plain(job.queue), "time": span((job.run_at - job.now).total_seconds())}
    if job.expires_at is not None and job.expires_at <= max(job.now, job.run_at):
        text = gettext("It expires before it can start; the next worker of queue %(queue)s that meets it ends it.")
        text %= facts
    elif state == "scheduled":
        text = gettext("It is due in %(time)s; then the next free worker of queue %(queue)s starts it.") % facts
    elif job.gate:
        text = gettext("It waits for its turn; then the next free worker of queue %(queue)s starts it.") % facts
    else:
        text = gettext("The next free worker of queue %(queue)s starts it.") % facts
    if job.wait_reason:
        text += " " + gettext("Why it waits: %(reason)s") % {"reason": plain(job.wait_reason)}
    return text
