"""unique, unique_seconds and on_conflict: how long a job holds its dedupe key, and what meets it there."""

from datetime import timedelta

import pytest

from jobqueue import enqueue, task
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.models import Job
from jobqueue.transitions import ack, cancel, claim, discard, fail, reap, release, retry, snooze
from tests.factories import claim_one, lease_with, row, set_columns, state

pytestmark = pytest.mark.django_db


@task(queue_name="q", unique="waiting")
def reindex(page, *, deep=False):
    return page


@task(queue_name="q", unique="unfinished")
def sync(user):
    return user


@task(queue_name="q", unique_seconds="1m")
def remind(user):
    return user


@task(queue_name="q", unique="waiting", dedupe_key="digest", on_conflict="replace")
def digest(text):
    return text


def add(task_, *args, **kwargs):
    return int(task_.enqueue(*args, **kwargs).id)


def test_equal_arguments_are_one_waiting_job():
    first = add(reindex, 1, deep=True)
    assert add(reindex, 1, deep=True) == first
    assert add(reindex, 2, deep=True) != first
    assert add(reindex, 1) != first


def test_another_task_with_the_same_arguments_has_another_key():
    assert add(reindex, 1) != add(sync, 1)


def test_the_claim_frees_the_key_of_a_job_that_holds_it_while_it_waits():
    first = add(reindex, 1)
    lease = claim_one()
    assert row(first)["dedupe_key"] is None
    second = add(reindex, 1)
    assert second != first
    assert fail(lease, error="x", delay_seconds=0) == Job.Status.READY
    assert (row(first)["dedupe_key"], row(first)["released_key"]) == (None, None)
    assert add(reindex, 1) == second


@pytest.mark.parametrize("give_back", [release, lambda lease: snooze(lease, delay_seconds=0)])
def test_a_job_that_was_claimed_once_holds_no_key_when_it_waits_again(give_back):
    first = add(reindex, 1)
    give_back(claim_one())
    assert state(first) == "READY"
    assert add(reindex, 1) != first


def test_a_claim_of_another_program_frees_the_key_for_the_next_enqueue():
    first = add(reindex, 1)
    claim_one()
    set_columns(first, dedupe_key=b"k")
    second = enqueue("q", 1, dedupe_key="k")
    assert second != first
    assert row(first)["dedupe_key"] is None


def test_a_retry_by_hand_comes_back_without_the_key():
    first = add(reindex, 1)
    cancel(first)
    second = add(reindex, 1)
    assert second != first
    assert retry(first)
    assert add(reindex, 1) == second
    assert row(first)["dedupe_key"] is None


ENDS = {
    "ack": lambda lease: ack(lease),
    "fail": lambda lease: fail(lease_with(lease, max_attempts=1), error="x"),
    "discard": lambda lease: (fail(lease_with(lease, max_attempts=1), error="x"), discard(lease.job_id)),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_unfinished_job_holds_its_key_until_its_end(end):
    first = add(sync, 1)
    lease = claim_one()
    assert add(sync, 1) == first
    ENDS[end](lease)
    assert add(sync, 1) != first


def test_a_canceled_job_is_no_unfinished_job():
    first = add(sync, 1)
    cancel(first)
    assert add(sync, 1) != first


def test_a_reaped_job_that_is_dead_is_no_unfinished_job():
    first = add(sync, 1)
    claim_one()
    set_columns(first, lock_until=UtcNowPlus(-1), max_attempts=1)
    reap()
    assert state(first) == "FAILED"
    assert add(sync, 1) != first


def test_a_retry_is_refused_while_another_unfinished_job_has_the_key():
    first = add(sync, 1)
    fail(lease_with(claim_one(), max_attempts=1), error="x")
    second = add(sync, 1)
    assert not retry(first)
    ack(claim_one())
    assert state(second) == "DONE"
    assert retry(first)
    assert add(sync, 1) == first


def test_unique_seconds_count_from_the_enqueue_in_every_state():
    first = add(remind, 1)
    ack(claim_one())
    assert add(remind, 1) == first
    set_columns(first, created_at=UtcNowPlus(-61))
    second = add(remind, 1)
    assert second != first
    set_columns(second, created_at=UtcNowPlus(-61))
    assert add(remind, 1) != second


def test_unique_seconds_end_the_hold_of_a_job_that_still_waits():
    later = reindex.using(unique_seconds=60)
    first = add(later, 1)
    assert add(later, 1) == first
    set_columns(first, created_at=UtcNowPlus(-61))
    assert add(later, 1) != first


def test_using_knows_the_modes():
    keyed = sync.using(unique="waiting", dedupe_key="own")
    first = add(keyed, 1)
    assert bytes(row(first)["dedupe_key"]) == b"own"
    assert add(keyed, 2) == first
    claim_one()
    assert add(keyed, 3) != first


def test_replace_gives_the_waiting_job_the_new_contents():
    first = add(digest, "old")
    due = read_now("default") + timedelta(hours=1)
    result = digest.using(run_after=due, priority=7).enqueue("new")
    found = Job.objects.get(pk=first)
    assert int(result.id) == first
    assert result.args == ["new"]
    assert (found.payload["args"], found.priority, found.run_at) == (["new"], 7, due)
    assert add(digest, "newer") == first
    assert Job.objects.get(pk=first).wait_reason is None
    assert claim_one().payload["args"] == ["newer"]


def test_replace_never_changes_a_running_job():
    kept = digest.using(unique="unfinished")
    first = add(kept, "old")
    claim_one()
    assert add(kept, "new") == first
    assert Job.objects.get(pk=first).payload["args"] == ["old"]


def test_replace_leaves_the_job_of_another_task_alone():
    other = enqueue("q", {"not": "ours"}, dedupe_key="digest")
    assert Job.objects.get(pk=other).payload == {"not": "ours"}
    assert add(digest, "new") == other
    assert Job.objects.get(pk=other).payload == {"not": "ours"}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"unique": "running"}, InvalidValue),
        ({"unique": 3}, InvalidValue),
        ({"unique_seconds": 0}, InvalidValue),
        ({"unique_seconds": "soon"}, InvalidValue),
        ({"on_conflict": "merge"}, InvalidValue),
        ({"tags": "billing"}, InvalidType),
        ({"tags": ["x" * 65]}, InvalidValue),
        ({"tags": [7]}, InvalidType),
    ],
)
def test_wrong_values_are_refused_with_the_name_of_the_task(fields, kind):
    with pytest.raises(kind, match=r"sync.*Nothing was written"):
        sync.using(**fields)


def test_replace_without_a_key_is_refused():
    with pytest.raises(InvalidValue, match="on_conflict"):
        task(queue_name="q", on_conflict="replace")(plain)


def plain():
    """Not a task."""


def test_jobs_without_a_mode_have_no_options():
    job_id = enqueue("q", 1)
    assert (row(job_id)["unique_mode"], row(job_id)["unique_seconds"], row(job_id)["options"]) == (0, None, None)
    assert [lease.job_id for lease in claim("q", worker="w")] == [job_id]
