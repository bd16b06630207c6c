"""A claimer that remembers how far it has come still finds everything."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many
from jobqueue.db import vendor
from jobqueue.models import Job
from jobqueue.transitions import release
from jobqueue.transitions.claiming import candidates, queue_memory
from jobqueue.transitions.claiming.candidates import Head
from jobqueue.transitions.claiming.claimer import CURSOR_BATCH, Claimer
from tests.factories import make_job, make_jobs, now, set_columns
from tests.marks import committed

pytestmark = committed


@pytest.fixture(autouse=True)
def long_memory(monkeypatch):
    """Memories that last as long as the test, however busy the machine is; that of a walk the shortest, as ever."""
    monkeypatch.setattr(queue_memory, "CURSOR_SECONDS", 6000)
    monkeypatch.setattr(queue_memory, "WALK_SECONDS", 600)
    monkeypatch.setattr(queue_memory, "SINGLE_PRIORITY_SECONDS", 6000)


@pytest.fixture
def claimer():
    return Claimer("w", "default")


def take(claimer, limit=CURSOR_BATCH):
    return [lease.job_id for lease in claimer.claim("q", limit, lease_seconds=60)]


def make_jobs_apart(count):
    """Jobs that are due one after another. On a fast machine many would be due in one millisecond."""
    first = now() - timedelta(seconds=count)
    for number, job_id in enumerate(make_jobs(count)):
        set_columns(job_id, run_at=first + timedelta(seconds=number))


@pytest.fixture
def late(claimer):
    """A job that is due earlier than what the claimer has already taken."""
    make_jobs_apart(3 * CURSOR_BATCH)
    take(claimer)
    job_id = make_job()
    set_columns(job_id, run_at="2020-01-01T00:00:00Z")
    return job_id


UNLOOKED = Head("q", None, all_due=False)


def test_a_job_that_was_announced_is_claimed_without_a_look(claimer):
    """The statements of the claim alone: one where the database can, a transaction elsewhere."""
    _, second = make_jobs(2)
    claimer.claim("q", 1, lease_seconds=60, head=UNLOOKED)
    with CaptureQueriesContext(connection) as said:
        (lease,) = claimer.claim("q", 1, lease_seconds=60, head=UNLOOKED)
    assert lease.job_id == second
    if vendor("default").has_update_returning:
        assert len(said) == 1


def test_below_a_level_of_delayed_jobs_an_announced_one_is_found_as_well(claimer):
    delayed = make_job(priority=9)
    set_columns(delayed, run_at="2090-01-01T00:00:00Z")
    job_id = make_job(priority=1)
    (lease,) = claimer.claim("q", 5, lease_seconds=60, head=UNLOOKED)
    assert lease.job_id == job_id


def test_a_false_announcement_brings_nothing(claimer):
    assert claimer.claim("q", 5, lease_seconds=60, head=UNLOOKED) == []


def test_a_batch_goes_on_where_the_last_one_ended(claimer, late):
    assert late not in take(claimer)


def test_what_became_due_earlier_is_found_when_a_batch_comes_back_short(claimer, late):
    take(claimer)
    take(claimer)
    assert late in take(claimer)


def test_what_became_due_earlier_is_found_after_a_second_whatever_the_backlog(claimer, late, monkeypatch):
    later = queue_memory.time.monotonic() + queue_memory.CURSOR_SECONDS
    monkeypatch.setattr(queue_memory.time, "monotonic", lambda: later)
    assert take(claimer)[0] == late


def test_a_floor_that_moves_up_is_as_old_as_its_first_look(claimer, monkeypatch):
    make_jobs_apart(4 * CURSOR_BATCH)
    first = queue_memory.time.monotonic()
    clock = [first]
    monkeypatch.setattr(queue_memory.time, "monotonic", lambda: clock[0])
    take(claimer)
    clock[0] = first + 0.6 * queue_memory.CURSOR_SECONDS
    take(claimer)
    late = make_job()
    set_columns(late, run_at="2020-01-01T00:00:00Z")
    clock[0] = first + 1.1 * queue_memory.CURSOR_SECONDS
    assert take(claimer)[0] == late


def test_small_claims_keep_the_exact_order(claimer):
    ids = make_jobs(4)
    (lease,) = claimer.claim("q", 1, lease_seconds=60)
    assert lease.job_id == ids[0]
    release(lease)
    assert take(claimer, 1) == [ids[0]]


def test_a_higher_priority_is_taken_first_and_the_lower_one_goes_on_after_it(claimer):
    low = make_jobs(2 * CURSOR_BATCH)
    assert take(claimer) == low[:CURSOR_BATCH]
    high = enqueue_many("q", range(3), priority=5)
    assert take(claimer) == high + low[CURSOR_BATCH : 2 * CURSOR_BATCH - 3]


def test_a_level_with_a_floor_that_was_emptied_does_not_hide_the_next(claimer):
    make_jobs(CURSOR_BATCH)
    low = enqueue_many("q", range(3), priority=-5)
    take(claimer)
    assert take(claimer) == low


def test_a_batch_added_by_one_statement_goes_on_after_its_last_job(claimer):
    """Above the run_at alone lie all jobs of the statement, also those that were claimed and cannot be purged yet."""
    ids = enqueue_many("q", range(3 * CURSOR_BATCH))
    assert take(claimer) == ids[:CURSOR_BATCH]
    with CaptureQueriesContext(connection) as said:
        assert take(claimer) == ids[CURSOR_BATCH : 2 * CURSOR_BATCH]
    reads = [query["sql"] for query in said if f"LIMIT {CURSOR_BATCH}" in query["sql"]]
    assert len(reads) == 1
    assert str(ids[CURSOR_BATCH - 1]) in reads[0].split("WHERE", 1)[1]
    assert take(claimer) == ids[2 * CURSOR_BATCH :]


def test_jobs_due_later_follow_a_batch_added_by_one_statement(claimer):
    first = enqueue_many("q", range(CURSOR_BATCH + 2))
    later = make_jobs(CURSOR_BATCH)
    assert take(claimer) == first[:CURSOR_BATCH]
    assert take(claimer) == first[CURSOR_BATCH:] + later[: CURSOR_BATCH - 2]


def test_each_queue_has_its_own_memory(claimer):
    make_jobs(2 * CURSOR_BATCH)
    take(claimer)
    (other,) = enqueue_many("other", [1])
    set_columns(other, run_at="2020-01-01T00:00:00Z")
    assert [lease.job_id for lease in claimer.claim("other", CURSOR_BATCH, lease_seconds=60)] == [other]


@pytest.fixture
def delayed_above(claimer):
    """Full batches of priority 0 below three levels that hold only delayed jobs; one has been taken."""
    for priority in (7, 8, 9):
        set_columns(make_job(priority=priority), run_at="2090-01-01T00:00:00Z")
    make_jobs_apart(4 * CURSOR_BATCH)
    follow(claimer)


def follow(claimer):
    """The ids of a batch, as a worker takes it: from the head that it was told."""
    (head,) = candidates.heads(["q"], using="default")
    leases = claimer.claim("q", CURSOR_BATCH, lease_seconds=60, head=head)
    assert len(leases) == CURSOR_BATCH
    return [lease.job_id for lease in leases]


@pytest.mark.usefixtures("delayed_above")
def test_levels_of_delayed_jobs_are_not_looked_at_for_every_batch(claimer):
    with CaptureQueriesContext(connection) as said:
        follow(claimer)
    reads = [query["sql"] for query in said if "ORDER BY" in query["sql"]]
    assert len(reads) == 2, "the look for heads, and the claim"


@pytest.mark.usefixtures("delayed_above")
def test_a_delayed_job_above_that_became_due_is_found_after_a_tenth_of_a_second(claimer, monkeypatch):
    due = Job.objects.get(priority=8)
    set_columns(due.pk, run_at="2020-01-01T00:00:00Z")
    later = queue_memory.time.monotonic() + queue_memory.WALK_SECONDS
    monkeypatch.setattr(queue_memory.time, "monotonic", lambda: later)
    assert follow(claimer)[0] == due.pk


@pytest.mark.usefixtures("delayed_above")
def test_a_level_above_all_known_ones_is_found_at_once(claimer):
    job_id = make_job(priority=10)
    (head,) = candidates.heads(["q"], using="default")
    assert claimer.claim("q", CURSOR_BATCH, lease_seconds=60, head=head)[0].job_id == job_id


@pytest.mark.usefixtures("delayed_above")
def test_a_due_job_of_the_highest_level_is_found_at_once(claimer):
    """Here the head says that it is due."""
    due = Job.objects.get(priority=9)
    set_columns(due.pk, run_at="2020-01-01T00:00:00Z")
    (head,) = candidates.heads(["q"], using="default")
    assert claimer.claim("q", CURSOR_BATCH, lease_seconds=60, head=head)[0].job_id == due.pk
