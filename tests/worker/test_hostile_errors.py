"""An exception whose attributes raise fails its own job, and no other job of its call."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from jobqueue import handler, task
from jobqueue.exceptions import BatchErrors
from jobqueue.failures.nested import nested_tries
from jobqueue.transitions import claim
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.child.retry_budget import RetryBudget
from jobqueue.worker.child.sifting import Breakers
from jobqueue.worker.run.perform import Run, perform
from jobqueue.worker.run.pool import UnrecordedFailures
from jobqueue.worker.run.timeouts import Watch
from jobqueue.worker.shared.counters import RetryCounts, RetryMemory
from jobqueue.worker.shared.scoreboard import LeaseSlot, ProcessSlot
from tests.factories import job, make_jobs, set_columns, state
from tests.failures.test_chains import HOSTILE, trap
from tests.marks import committed

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]


class Meta(type):
    """A class whose names raise."""

    __getattribute__ = trap


CLASSES = [
    *(pytest.param(type("Hostile", (Exception,), dict(body)), id=name) for name, body in HOSTILE.items()),
    pytest.param(type("Hostile", (Exception,), {"__module__": None}), id="no module"),
    pytest.param(Meta("Hostile", (Exception,), {}), id="names"),
]


def settled(leases):
    """Run one call as a worker does, and write its outcomes."""
    outcomes = perform(leases, Run(LeaseSlot(), Watch(), lambda: False))
    counts = RetryCounts(RetryMemory())
    RetryBudget(counts, [counts], "w").ended(outcomes)
    for outcome in outcomes:
        outcome.dependency = "service"
    Breakers(
        ProcessSlot(), SimpleNamespace(unrecorded=UnrecordedFailures()), "default", nullcontext(), nullcontext
    ).ended(outcomes)
    for outcome in outcomes:
        outcome.note_on(LeaseSlot())
    assert settle(outcomes, SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)) == []


@pytest.mark.parametrize("kind", CLASSES)
def test_the_other_jobs_of_its_batch_are_done(kind):
    @handler("q", batch=10)
    def load(leases):
        raise BatchErrors({leases[0].job_id: kind("x")})

    bad, *good = make_jobs(3)
    settled(claim("q", 3, worker="w"))
    assert (state(bad), job(bad).attempts) == ("READY", 1)
    assert [state(job_id) for job_id in good] == ["DONE", "DONE"]


@pytest.mark.parametrize("kind", CLASSES)
def test_it_may_be_what_another_error_was_raised_from(kind):
    error = ValueError("outer")
    error.__cause__ = kind("x")
    assert nested_tries(error).tries == 1


RAISED = []


def raises():
    raise RAISED[0]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_policy_that_names_classes_can_be_asked_about_it(kind):
    RAISED[:] = [kind("x")]
    one = task(queue_name="q", retry_on=(KeyError,), max_attempts=5)(raises)
    ids = [int(one.enqueue().id), int(one.using(retry_on=(LookupError,)).enqueue().id)]
    for lease in claim("q", 2, worker="w"):
        settled([lease])
    assert [(state(job_id), job(job_id).attempts) for job_id in ids] == [("FAILED", 1)] * 2


def test_options_too_long_to_add_to_do_not_change_how_the_job_ends():
    RAISED[:] = [ValueError("boom")]
    one = task(queue_name="q", retry_until_seconds=3600, max_attempts=5)(raises)
    job_id = int(one.enqueue().id)
    set_columns(job_id, options={"note": "x" * 17_000})
    settled(claim("q", worker="w"))
    assert (state(job_id), job(job_id).attempts, job(job_id).cause) == ("READY", 1, "data")
