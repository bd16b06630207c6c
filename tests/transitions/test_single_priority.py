"""Where all jobs have one priority a claim does not look for others, and finds them in time all the same."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue.models import Job
from jobqueue.transitions.claiming import candidates, queue_memory
from jobqueue.transitions.claiming.claimer import Claimer
from tests.factories import make_job
from tests.marks import committed
from tests.races.actors import holding
from tests.settings import VENDOR

pytestmark = committed


@pytest.fixture
def clock(monkeypatch):
    """The claimer's time, in a list of one."""
    now = [queue_memory.time.monotonic()]
    monkeypatch.setattr(queue_memory.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def claimer(clock):
    """One that has seen a queue of one priority."""
    claimer = Claimer("w", "default")
    make_job()
    take(claimer)
    return claimer


def take(claimer, limit=5):
    head = candidates.heads(["q"], using="default")[0]
    return [lease.job_id for lease in claimer.claim("q", limit, lease_seconds=60, head=head)]


def looks(said):
    """The questions for the highest priority that waits, or for the next lower one."""
    return [query["sql"] for query in said if "all_due" in query["sql"]]


def test_the_only_priority_is_claimed_without_a_look_below(claimer):
    job_id = make_job()
    with CaptureQueriesContext(connection) as said:
        assert take(claimer) == [job_id]
    assert len(looks(said)) == 1, "the look for heads"


def test_a_lower_priority_is_taken_as_soon_as_nothing_higher_waits(claimer):
    low = make_job(priority=-1)
    assert take(claimer) == [low]


def test_while_the_higher_priority_goes_on_coming_a_lower_one_waits_a_second_at_most(claimer, clock):
    low = make_job(priority=-1)
    for _ in range(3):
        clock[0] += 0.3
        job_id = make_job()
        assert take(claimer) == [job_id]
    clock[0] += 0.2
    job_id = make_job()
    assert take(claimer) == [job_id, low]


def test_two_priorities_are_looked_at_in_one_claim(claimer, clock):
    clock[0] += 2
    make_job(priority=-1)
    make_job()
    take(claimer)
    ids = [make_job(), make_job(priority=-1)]
    assert take(claimer) == ids


@pytest.mark.skipif(VENDOR == "sqlite", reason="the write lock of SQLite is held by the whole transaction")
def test_a_single_priority_that_others_have_locked_does_not_hide_a_lower_one(claimer):
    held, low = make_job(), make_job(priority=-1)
    with holding(lambda: Job.objects.select_for_update().get(pk=held)):
        assert take(claimer) == [low]
