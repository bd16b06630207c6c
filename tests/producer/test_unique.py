"""unique, unique_seconds and on_conflict: how long a job holds its dedupe key, and what meets it there."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import enqueue, task
from jobqueue.db.clock import UtcNowPlus, read_now
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.gates.waiting import FLOW_GATE
from jobqueue.models import GateWait, Job
from jobqueue.ordering import HALTED, WAITS
from jobqueue.transitions import ack, cancel, claim, discard, fail, reap, release, retry, snooze
from tests.factories import claim_one, lease_with, row, set_columns, state
from tests.marks import finding

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


@task(queue_name="q", unique="waiting", takes_context=True)
def with_context(context, user, group=1, *, deep=False):
    return user


@finding("S-C7")
def test_arguments_by_place_and_by_name_are_the_same():
    first = add(reindex, 1, deep=True)
    assert add(reindex, page=1, deep=True) == first
    second = add(with_context, 1, 2, deep=True)
    assert add(with_context, deep=True, group=2, user=1) == second
    assert add(with_context, 1, group=2, deep=True) == second
    assert add(with_context, 1, deep=True) != second


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


@task(queue_name="q", dedupe_key="order", on_conflict="replace", ordering_key=lambda key: key)
def in_order(key):
    return key


@task(queue_name="q", ordering_key=lambda key: key)
def also_in_order(key):
    return key


@finding("S-B4")
def test_a_replaced_job_waits_for_a_slot_of_the_key_of_its_new_arguments(own_registry):
    limited = task(queue_name="q", concurrency_key=lambda name: name, concurrency_limit=1)(customer)
    limited.enqueue("acme")
    claim_one()
    kept = limited.using(dedupe_key="sync", on_conflict="replace")
    waits = add(kept, "acme")
    assert claim("q", worker="w") == []
    assert Job.objects.get(pk=waits).gate == FLOW_GATE
    assert add(kept, "zeta") == waits
    assert Job.objects.get(pk=waits).concurrency_key == b"zeta"
    assert not GateWait.objects.exists()
    assert [lease.payload["args"] for lease in claim("q", 5, worker="w")] == [["zeta"]]


@pytest.mark.parametrize("later", [{"priority": -1}, {"run_after": datetime(2999, 1, 1, tzinfo=UTC)}, {}])
def test_a_replaced_job_waits_for_its_slot_in_the_place_of_its_new_priority_and_time(own_registry, later):
    limited = task(queue_name="q", concurrency_limit=1)(customer)
    limited.enqueue("runs")
    running = claim_one()
    kept = limited.using(dedupe_key="sync", on_conflict="replace")
    first, other = add(kept, "first"), add(limited, "other")
    assert claim("q", 5, worker="w") == []
    assert GateWait.objects.count() == 2
    assert add(kept.using(**later), "last") == first
    assert claim("q", 5, worker="w") == []
    ack(running)
    assert [lease.job_id for lease in claim("q", 5, worker="w")] == [other]


@finding("S-B4")
def test_a_replaced_job_goes_behind_the_others_of_its_new_ordering_key():
    moved = add(in_order, "one")
    others = [add(also_in_order, key) for key in ("one", "two")]
    assert add(in_order, "two") == moved
    leases = claim("q", 5, worker="w")
    assert [lease.job_id for lease in leases] == others
    found = Job.objects.get(pk=moved)
    assert (found.ordering_key, found.wait_reason) == (b"two", WAITS)
    assert claim("q", 5, worker="w") == []
    # Back into the lane that it has left.
    assert add(in_order, "one") == moved
    ack(leases[0])
    assert [lease.payload["args"] for lease in claim("q", 5, worker="w")] == [["one"]]


def test_a_replaced_job_that_was_alone_in_its_lane_stays_open_in_the_next_one():
    moved = add(in_order, "one")
    assert add(in_order, "two") == moved
    assert (Job.objects.get(pk=moved).gate, Job.objects.get(pk=moved).wait_reason) == (0, None)
    assert add(in_order, "two") == moved
    assert Job.objects.get(pk=moved).wait_reason is None
    (lease,) = claim("q", 5, worker="w")
    ack(lease)
    assert add(also_in_order, "one") in [lease.job_id for lease in claim("q", 5, worker="w")]


def test_a_replaced_job_that_was_halted_leaves_its_key_halted(settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"ON_KEY_FAILURE": "halt"}}}
    add(also_in_order, "one")
    moved, behind = add(in_order, "one"), add(also_in_order, "one")
    fail(claim_one(), error="x", retry=False)
    assert discard(Job.objects.get(status=Job.Status.FAILED).pk)
    assert add(in_order, "two") == moved
    assert [lease.job_id for lease in claim("q", 5, worker="w")] == [moved]
    assert Job.objects.get(pk=behind).wait_reason == HALTED


@finding("S-B4")
def test_the_time_for_retries_of_a_replaced_job_begins_when_it_is_due(own_registry):
    limited = task(queue_name="q", retry_until_seconds=3600)(remind_later)
    kept = limited.using(dedupe_key="k", on_conflict="replace")
    first = int(kept.enqueue(1).id)
    due = read_now("default") + timedelta(days=1)
    assert int(kept.using(run_after=due).enqueue(2).id) == first
    assert Job.objects.get(pk=first).options["first_due"] == [due.isoformat(), 0]
    set_columns(first, attempts=2)
    kept.enqueue(3)
    instant, attempts = Job.objects.get(pk=first).options["first_due"]
    assert attempts == 2
    assert abs(datetime.fromisoformat(instant) - read_now("default")) < timedelta(minutes=1)


def customer(name):
    return name


def remind_later(number):
    return number


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
