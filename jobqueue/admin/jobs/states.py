"""The state of a job as pages show it: its status, compared with the clock; and the verbs that a state allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import StrOrPromise
from jobqueue.admin.page.readonly import Facts
from jobqueue.models import Job, states
from jobqueue.models.job import QUARANTINED

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownJob = WithAnnotations[Job, Facts]
else:
    ShownJob = Job

LABELS: dict[str, StrOrPromise] = {
    "ready": _("ready"),
    "scheduled": _("scheduled"),
    "retrying": _("retries"),
    "held": _("held"),
    "running": _("running"),
    "expired": _("lease expired"),
    "failed": _("failed"),
    "canceled": _("canceled"),
    "done": _("done"),
}
#: status of a job that has ended -> state
ENDED = {Job.Status.FAILED: "failed", Job.Status.CANCELED: "canceled", Job.Status.DONE: "done"}
#: status -> the state of a job, whatever the clock says
STATE_OF = {Job.Status.READY: "ready", Job.Status.PROCESSING: "running", **ENDED}

#: state -> the verbs that can change such a job; transitions check that again
VERBS: dict[str, tuple[str, ...]] = {
    "ready": ("cancel", "discard"),
    "scheduled": ("retry", "cancel", "discard"),
    "held": ("retry", "run_alone", "cancel", "discard"),
    "running": ("cancel", "kill", "extend", "release"),
    "expired": ("cancel", "release"),
    "failed": ("retry", "discard"),
    "canceled": ("retry",),
    "done": (),
}


def verbs_of(job: ShownJob) -> tuple[str, ...]:
    """The verbs whose buttons its page has."""
    quarantined = job.status == Job.Status.FAILED and job.wait_reason == QUARANTINED
    state = state_of(job)
    # A node that is due waits for its parents alone: a retry would change nothing.
    own = [verb for verb in VERBS[state] if (verb, state) != ("retry", "scheduled") or job.run_at > job.now]
    return (*own, *(["run_alone"] if quarantined else []))


def state_of(job: ShownJob) -> str:
    """The key in LABELS of a job."""
    return states.state_of(job, job.now)


def state_label(job: ShownJob) -> str:
    """The state, and whether a stop was requested."""
    label = str(LABELS[state_of(job)])
    if job.status == Job.Status.PROCESSING and job.cancel_requested_at is not None:
        return gettext("%(state)s, stop requested") % {"state": label}
    return label
