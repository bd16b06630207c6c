"""The state of a job as pages show it: its status, compared with the clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import plain, short_class, span
from jobqueue.conf import load
from jobqueue.dead_letters.alone import is_requested
from jobqueue.explain import Explanation
from jobqueue.models import Job, LaneEntry, states
from jobqueue.models.job import QUARANTINED
from jobqueue.ordering import SCHEDULED

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise, WithAnnotations

    from jobqueue.admin.page.readonly import Facts

    ShownJob = WithAnnotations[Job, Facts]

LABELS: dict[str, StrOrPromise] = {
    "ready": _("ready"),
    "scheduled": _("scheduled"),
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
    "running": ("cancel", "extend", "release"),
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


def what_next(job: ShownJob, reasons: Sequence[Explanation]) -> str:
    """A sentence on what happens to a job next if nobody changes it. `reasons`: why it waits, if it does."""
    state = state_of(job)
    if state in ("ready", "scheduled"):
        return _waiting(job, reasons)
    if state == "expired":
        return gettext("Its lease has expired. The next reaper makes it ready again, or ends it if no attempt is left.")
    if state == "running":
        text = gettext("Its worker renews the lease while the job runs. Without renewal the lease ends in %(time)s.")
        return text % {"time": span((job.lock_until - job.now).total_seconds())}
    if state in ("held", "failed") and is_requested(job.pk, using=load().database):
        text = gettext("The next free worker of queue %(queue)s runs it alone, in a process of its own.")
        return text % {"queue": plain(job.queue)}
    if state == "held":
        return gettext("Nothing, until it is retried or discarded: its worker process died, or its lease ran out.")
    if state == "failed" and job.wait_reason == QUARANTINED:
        return gettext("Nothing, until it is retried or discarded. It killed its workers: run it alone.")
    if state == "failed" and _blocks_its_key(job):
        return gettext("Nothing, until it is retried or discarded. Later jobs of its ordering key wait for that.")
    if state == "failed":
        return gettext("Nothing, until it is retried or discarded.")
    return gettext("Nothing: it has ended.")


def _blocks_its_key(job: ShownJob) -> bool:
    entries = LaneEntry.objects.using(load().database)
    return job.ordering_key is not None and entries.filter(job_id=job.pk).exists()


def _waiting(job: ShownJob, reasons: Sequence[Explanation]) -> str:
    """The sentence for a job that is ready: when it starts, as far as that is known."""
    facts = {"queue": plain(job.queue), "time": span((job.run_at - job.now).total_seconds())}
    if job.expires_at is not None and job.expires_at <= max(job.now, job.run_at):
        text = gettext("It expires before it can start. The next worker of queue %(queue)s that reads it cancels it.")
        return text % facts
    code = reasons[0].code
    if code == "not_due":
        text = gettext("It is due in %(time)s. Then the next free worker of queue %(queue)s starts it.") % facts
    elif code == "workers_busy":
        text = gettext("The next free worker of queue %(queue)s starts it.") % facts
    else:
        return gettext("It starts when none of the reasons below holds it back any more.")
    if job.wait_reason and job.wait_reason != SCHEDULED:
        text += " " + gettext("Wait reason: %(reason)s") % {"reason": plain(short_class(job.wait_reason))}
    return text
