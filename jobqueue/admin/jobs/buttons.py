"""The buttons of a job's page: each says what follows before one presses it."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.actions import BUTTONS
from jobqueue.admin.jobs.states import state_of, verbs_of

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from jobqueue.admin.jobs.states import ShownJob

#: verbs on the lease, whose buttons stand beside what is said of it
OF_LEASES = ("extend", "release")
_RUNNING = ("running", "expired")
_NOTES: dict[str, StrOrPromise] = {
    "retry": _("It runs again as soon as a worker is free, with new attempts."),
    "run_alone": _("It runs in a worker process of its own, so that a crash ends no other job."),
    "cancel": _("It ends and does not run."),
    "discard": _("It leaves the dead letters and does not run again."),
    "extend": _(
        "Until then nobody takes the job away, even if its worker does not renew the lease. A worker that renews it "
        "sets the end anew."
    ),
    "release": _(
        "The job is taken from its worker, and another one may start it at once. If the first run still works, both "
        "runs may do their work; the first one cannot end the job any more."
    ),
}
#: (verb, state) -> a note that replaces the usual one
_NOTES_IN: dict[tuple[str, str], StrOrPromise] = {
    ("retry", "scheduled"): _("It runs as soon as a worker is free, and does not wait for its time."),
    ("retry", "held"): _("It runs as soon as a worker is free, among other jobs."),
    ("cancel", "running"): _("It is asked to stop, and ends as canceled if it looks at should_stop."),
    ("cancel", "expired"): _("It ends as canceled when its lease is ended."),
    ("discard", "ready"): _("The same as Cancel for a job that waits."),
    ("discard", "scheduled"): _("The same as Cancel for a job that waits."),
    ("discard", "held"): _("The same as Cancel for a job that waits."),
}


class Button(NamedTuple):
    """A verb with the label of its button, and a sentence on what it does."""

    name: str
    label: StrOrPromise
    note: StrOrPromise


def label_of(name: str, job: ShownJob) -> StrOrPromise:
    """The label of a verb: a job that has not run yet is not "retried", and a running one is asked to stop."""
    state = state_of(job)
    if name == "retry" and state == "scheduled" and not job.attempts:
        return _("Run now")
    return _("Ask to stop") if name == "cancel" and state in _RUNNING else BUTTONS[name]


def buttons_of(job: ShownJob, permitted: Container[str]) -> list[Button]:
    """Those that can change the job now, and that are among the permitted ones."""
    state = state_of(job)
    return [
        Button(name, label_of(name, job), _NOTES_IN.get((name, state), _NOTES[name]))
        for name in verbs_of(job)
        if name in permitted
    ]
