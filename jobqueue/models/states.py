"""The states in which people see a job: its status, and for one that waits its gate and its run_at.

This is the only definition: the overview, the tabs and the list of jobs, `jobs stats`, `jobs list`, metrics, alarms and
bulk verbs take it from here. Each READY job is ready, scheduled or held:

- ready: it is due. A free worker starts it, unless its queue is paused, or its key, a limit or a breaker is not free.
- scheduled: it is not due yet, or it is a node of a workflow and waits for its parents, whatever its run_at.
  Some of these are retrying: an attempt has failed, and the next one is not due yet.
- held: it waits for a person, whatever its run_at.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from django.db.models import Q

from jobqueue.db.clock import UtcNow
from jobqueue.models import Job
from jobqueue.models.group import PARENTS_GATE
from jobqueue.models.job import HELD_GATE


class State(NamedTuple):
    """The status of its jobs, and what else is true of them."""

    status: int
    rest: Q


_HELD, _NODE = Q(gate=HELD_GATE), Q(gate=PARENTS_GATE)
#: in the order of the tabs; a job that is retrying is scheduled, too, and one whose lease has expired is running
STATES: Mapping[str, State] = {
    "ready": State(Job.Status.READY, ~(_HELD | _NODE) & Q(run_at__lte=UtcNow())),
    "scheduled": State(Job.Status.READY, ~_HELD & (_NODE | Q(run_at__gt=UtcNow()))),
    "retrying": State(Job.Status.READY, ~(_HELD | _NODE) & Q(run_at__gt=UtcNow(), attempts__gt=0)),
    "held": State(Job.Status.READY, _HELD),
    "running": State(Job.Status.PROCESSING, Q()),
    "expired": State(Job.Status.PROCESSING, Q(lock_until__lt=UtcNow())),
    "failed": State(Job.Status.FAILED, Q()),
    "canceled": State(Job.Status.CANCELED, Q()),
    "done": State(Job.Status.DONE, Q()),
}
#: the states of READY jobs: each job has one of them
WAITING = ("ready", "scheduled", "held")


def condition_of(name: str) -> Q:
    """The condition on the jobs of a state."""
    state = STATES[name]
    return Q(status=state.status) & state.rest


def state_of(job: Job, now: datetime) -> str:
    """The state of a job at an instant of the database's clock; "expired" if its lease has run out."""
    if job.status == Job.Status.READY:
        return waiting_state(job.gate, job.run_at, now)
    if job.status == Job.Status.PROCESSING:
        return "expired" if job.lock_until is not None and job.lock_until < now else "running"
    return next(name for name, state in STATES.items() if state.status == job.status)


def waiting_state(gate: int, run_at: datetime, now: datetime) -> str:
    """The state of a READY job with this gate and run_at."""
    if gate == HELD_GATE:
        return "held"
    return "scheduled" if gate == PARENTS_GATE or run_at > now else "ready"
