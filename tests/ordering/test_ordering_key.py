"""Jobs with an ordering key: strictly one after another, in the order of enqueue."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, enqueue_many
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.maintenance import cleaner, sweeps
from jobqueue.models import HeldKey, Job, LaneEntry
from jobqueue.transitions import (
    ack,
    ack_many,
    cancel,
    cancel_held,
    claim,
    discard,
    fail,
    held_by,
    operator,
    reap,
    release,
    release_many,
    resume,
    retry,
    snooze,
)
from tests.app.tasks import keyed, ordered
from tests.factories import claim_one, expire, job, make_due, set_columns, state, undone

pytestmark = pytest.mark.django_db


def add(count, key="k", queue="q", **arguments):
    """The ids of `count` jobs of one key."""
    return [enqueue(queue, n, ordering_key=key, **arguments) for n in range(count)]


def take(limit=100, queue="q"):
    """The leases of everything that may run now, by job id."""
    return {lease.job_id: lease for lease in claim(queue, limit, worker="w")}


def taken(limit=100):
    return list(take(limit))


def kill(job_id, *, policy_settings=None):
    """Let the job at the head fail for the last time."""
    set_columns(job_id, max_attempts=1)
    fail(take()[job_id], error="boom")
    assert state(job_id) == "FAILED"


def places():
    return list(LaneEntry.objects.order_by("id").values_list("job_id", flat=True))


def test_only_the_first_job_of_a_key_is_claimed():
    first, _second, _third = add(3)
    assert taken() == [first]
    assert taken() == []


def test_the_next_one_is_claimed_when_the_one_before_is_done():
    ids = add(3)
    for job_id in ids:
        leases = take()
        assert list(leases) == [job_id]
        ack(leases[job_id])
    assert taken() == []
    assert places() == []


def test_different_keys_and_jobs_without_key_run_side_by_side():
    a, b, free = add(2, "a"), add(2, "b"), [enqueue("q", 1), enqueue("q", 2)]
    assert set(taken()) == {a[0], b[0], *free}


def test_the_same_key_in_another_queue_is_another_key():
    (here,), (there,) = add(1), add(1, queue="p")
    assert taken() == [here]
    assert list(take(queue="p")) == [there]


@pytest.mark.parametrize("other", ["K", "k ", "ḱ", b"k\xff"])
def test_keys_are_compared_byte_for_byte(other):
    ids = add(1, "k") + add(1, other)
    assert set(taken()) == set(ids)


def test_a_str_and_its_bytes_are_the_same_key():
    first, _ = add(1, "schlüssel") + add(1, "schlüssel".encode())
    assert taken() == [first]


@pytest.mark.parametrize("bad", ["", "x" * 65, b"", "\ud800", "a\x00b"])
def test_a_key_that_cannot_be_stored_is_refused_before_anything_is_written(bad):
    with pytest.raises(InvalidValue, match="ordering_key"):
        enqueue("q", 1, ordering_key=bad)
    assert not Job.objects.exists()


def test_a_key_of_another_type_is_refused():
    with pytest.raises(InvalidType, match="ordering_key"):
        enqueue_many("q", [1], ordering_key=7)


def test_a_waiting_job_says_why_it_waits():
    first, second = add(2)
    assert (job(first).gate, job(first).wait_reason) == (0, None)
    assert (job(second).gate, state(second)) == (1, "READY")
    assert "ordering key" in job(second).wait_reason


def test_priority_and_run_at_do_not_overtake_within_a_key():
    first = enqueue("q", 1, ordering_key="k", priority=0)
    enqueue("q", 2, ordering_key="k", priority=9)
    assert taken() == [first]


def test_a_delayed_head_delays_those_behind_it():
    head = enqueue("q", 1, ordering_key="k")
    set_columns(head, run_at=UtcNowPlus(3600))
    later = enqueue("q", 2, ordering_key="k")
    assert taken() == []
    make_due(head)
    ack(take()[head])
    assert taken() == [later]


def test_jobs_of_one_call_run_in_the_order_of_the_payloads():
    ids = enqueue_many("q", range(25), ordering_key="k")
    seen = []
    while leases := take():
        assert len(leases) == 1
        seen += leases
        assert ack_many(list(leases.values())) == []
    assert seen == ids


def test_a_batch_holds_at_most_one_job_of_each_key():
    for n in range(3):
        for key in range(20):
            enqueue("q", n, ordering_key=f"k{key}")
    for n in range(3):
        leases = take()
        assert sorted(lease.payload for lease in leases.values()) == [n] * 20
        ack_many(list(leases.values()))
    assert taken() == []


def test_a_failed_attempt_keeps_its_place():
    first, _ = add(2)
    fail(take()[first], error="once", delay_seconds=3600)
    assert taken() == []
    make_due(first)
    assert taken() == [first]


@pytest.mark.parametrize("give_back", [release, lambda lease: release_many([lease])])
def test_a_job_that_is_given_back_keeps_its_place(give_back):
    first, _ = add(2)
    give_back(take()[first])
    assert taken() == [first]


def test_a_snoozed_job_keeps_its_place():
    first, _ = add(2)
    snooze(take()[first], delay_seconds=3600)
    assert taken() == []
    make_due(first)
    assert taken() == [first]


def test_a_job_whose_lease_ran_out_keeps_its_place():
    first, _ = add(2)
    expire(take()[first])
    assert reap().requeued == 1
    assert taken() == [first]


def test_a_head_that_is_canceled_by_its_holder_lets_the_next_one_go():
    first, second = add(2)
    cancel_held(take()[first])
    assert taken() == [second]


def test_a_head_that_was_asked_to_cancel_and_is_reaped_lets_the_next_one_go():
    first, second = add(2)
    lease = take()[first]
    cancel(first)
    expire(lease)
    assert reap().canceled == 1
    assert taken() == [second]


@pytest.mark.parametrize("verb", [cancel, discard])
def test_a_head_that_is_canceled_while_it_waits_lets_the_next_one_go(verb):
    first, second = add(2)
    assert verb(first)
    assert taken() == [second]


def test_a_job_that_is_canceled_in_the_middle_is_passed_over():
    first, second, third = add(3)
    assert cancel(second)
    ack(take()[first])
    assert taken() == [third]


def test_a_thousand_canceled_jobs_are_passed_over():
    first, *canceled, last = enqueue_many("q", range(1200), ordering_key="k")
    Job.objects.filter(pk__in=canceled).update(status=Job.Status.CANCELED)
    ack(take()[first])
    assert taken() == [last]
    assert places() == [last]


def test_an_expired_head_lets_the_next_one_go():
    first, second = add(2)
    set_columns(first, expires_at=UtcNowPlus(-1))
    met = taken()
    assert state(first) == "CANCELED"
    assert met + taken() == [second]


def test_a_job_whose_row_was_deleted_is_passed_over_by_the_sweep():
    first, second = add(2)
    Job.objects.filter(pk=first).delete()
    assert sweeps.OrderingSweep().run_once(None, using="default")["jobs_opened"] == 1
    assert taken() == [second]


def test_a_job_that_plain_sql_has_acked_lets_the_next_one_go_with_the_sweep(sql):
    first, second = add(2)
    take()
    sql(
        "UPDATE job_queue SET status = 2, lock_token = NULL, locked_by = NULL, locked_at = NULL, lock_until = NULL "
        "WHERE id = %s",
        [first],
    )
    assert taken() == []
    assert sweeps.OrderingSweep().run_once(None, using="default")["jobs_opened"] == 1
    assert taken() == [second]


class TestAFailedHead:
    def test_blocks_its_key_by_default(self):
        first, _second = add(2)
        kill(first)
        assert taken() == []
        add(1)
        assert taken() == []

    def test_does_not_block_other_keys(self):
        first, _ = add(2)
        (other,) = add(1, "other")
        kill(first)
        assert taken() == []
        assert state(other) == "PROCESSING"

    def test_runs_again_in_its_old_place_when_it_is_retried(self):
        first, second = add(2)
        kill(first)
        assert retry(first)
        leases = take()
        assert list(leases) == [first]
        ack(leases[first])
        assert taken() == [second]

    def test_lets_its_key_go_on_when_it_is_discarded(self):
        first, second = add(2)
        kill(first)
        assert discard(first)
        assert taken() == [second]

    def test_is_left_behind_by_resume(self):
        first, second = add(2)
        kill(first)
        assert resume("q", "k") is True
        assert taken() == [second]
        assert state(first) == "FAILED"
        assert resume("q", "k") is False

    def test_that_was_left_behind_runs_after_the_others_when_it_is_retried(self):
        first, second, third = add(3)
        kill(first)
        resume("q", "k")
        assert retry(first)
        for expected in (second, third, first):
            leases = take()
            assert list(leases) == [expected]
            ack(leases[expected])
        assert places() == []

    def test_lets_the_next_one_go_with_skip(self, settings):
        settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "ON_KEY_FAILURE": "skip"}
        first, second = add(2)
        kill(first)
        assert taken() == [second]

    def test_follows_the_policy_of_its_queue(self, settings):
        queues = {"QUEUES": {"q": {"ON_KEY_FAILURE": "skip"}}}
        settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "ON_KEY_FAILURE": "block", **queues}
        first, second = add(2)
        kill(first)
        assert taken() == [second]

    def test_that_was_reaped_follows_the_policy_too(self, settings):
        settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "ON_KEY_FAILURE": "skip"}
        first, second = add(2)
        set_columns(first, max_attempts=1)
        expire(take()[first])
        assert reap().dead == 1
        assert taken() == [second]

    @pytest.mark.parametrize("end", [lambda job_id: retry(job_id) and ack(claim_one()), discard])
    def test_halts_its_key_until_resume_with_halt(self, settings, end):
        settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "ON_KEY_FAILURE": "halt"}
        first, second, third = add(3)
        kill(first)
        end(first)
        assert taken() == []
        assert "resume" in job(second).wait_reason
        assert resume("q", "k") is True
        leases = take()
        assert list(leases) == [second]
        ack(leases[second])
        assert taken() == [third]

    def test_is_left_behind_by_resume_with_halt(self, settings):
        settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "ON_KEY_FAILURE": "halt"}
        first, second = add(2)
        kill(first)
        assert resume("q", "k") is True
        assert taken() == [second]


def test_resume_of_a_key_that_nothing_holds_up_is_false():
    add(2)
    assert resume("q", "k") is False
    assert resume("q", "never heard of") is False


def test_a_canceled_job_that_is_retried_goes_behind_those_that_wait_now():
    first, second, third = add(3)
    cancel(first)
    assert retry(first)
    for expected in (second, third, first):
        leases = take()
        assert list(leases) == [expected]
        ack(leases[expected])


def test_a_waiting_job_that_is_canceled_and_retried_keeps_its_place():
    first, second, third = add(3)
    cancel(second)
    retry(second)
    assert taken() == [first]
    assert job(second).gate == 1
    assert "ordering key" in job(second).wait_reason
    (lease,) = held_by("w", using="default")
    ack(lease)
    assert taken() == [second]
    assert places() == [second, third]


def test_retry_of_a_delayed_job_that_waits_for_its_key_leaves_it_waiting():
    first, second = add(2)
    set_columns(second, run_at=UtcNowPlus(3600))
    assert retry(second)
    assert taken() == [first]
    assert (job(second).gate, "ordering key" in job(second).wait_reason) == (1, True)


def test_a_dedupe_key_that_is_held_adds_no_place():
    first = enqueue("q", 1, ordering_key="k", dedupe_key="d")
    assert enqueue("q", 1, ordering_key="k", dedupe_key="d") == first
    assert enqueue_many("q", [1, 2], ordering_key="k", dedupe_keys=["d", "e"])[0] == first
    assert len(places()) == 2


def test_a_rolled_back_enqueue_leaves_no_place():
    with undone():
        add(2)
    assert places() == []
    (job_id,) = add(1)
    assert taken() == [job_id]


def test_a_task_takes_an_ordering_key():
    results = [ordered.using(ordering_key="k").enqueue(n) for n in range(3)]
    assert taken_default() == [int(results[0].id)]


def test_an_ordering_key_may_be_a_function_of_the_arguments():
    a1, _a2, b1 = keyed.enqueue("a"), keyed.enqueue("a"), keyed.enqueue("b")
    assert set(taken_default()) == {int(a1.id), int(b1.id)}


def test_a_function_that_gives_no_key_gives_a_job_without_order():
    one, two = keyed.enqueue(""), keyed.enqueue("")
    assert set(taken_default()) == {int(one.id), int(two.id)}


def taken_default():
    return list(take(queue="default"))


def test_jobs_without_key_write_nothing_but_their_row(django_assert_num_queries, read_once):
    enqueue("q", 0)
    with django_assert_num_queries(1):
        enqueue("q", 1)
    lease = claim_one()
    with django_assert_num_queries(1):
        ack(lease)
    assert (LaneEntry.objects.count(), HeldKey.objects.count()) == (0, 0)


def test_old_key_rows_are_deleted_and_made_anew():
    first, second = add(2)
    HeldKey.objects.update(created_at=UtcNowPlus(-2 * cleaner.KEY_SECONDS))
    assert cleaner.CLEANERS["keys"].run_once(None, using="default").total() == 1
    (third,) = add(1)
    for expected in (first, second, third):
        ack(take()[expected])


def test_a_retry_that_is_refused_for_its_dedupe_key_leaves_no_place(monkeypatch, settings):
    settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "DEDUPE_SECONDS": 0}
    first = enqueue("q", 1, ordering_key="k", dedupe_key="d")
    kill(first)
    resume("q", "k")
    set_columns(first, finished_at=UtcNowPlus(-5))
    assert enqueue("q", 2, dedupe_key="d") != first
    # As if the enqueue had been committed between the look and the write.
    monkeypatch.setattr(operator, "_take_key_back", lambda job, using: True)
    assert retry(first) is False
    assert places() == []


def test_many_enqueues_of_one_transaction_look_at_their_lanes_once(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks() as hooks, transaction.atomic():
        for n in range(30):
            enqueue("q", n, ordering_key=f"k{n % 3}")
    with CaptureQueriesContext(connection) as seen:
        for hook in hooks:
            hook()
    assert len(seen) < 15
    assert len(taken()) == 3


def test_a_job_that_somebody_has_gated_otherwise_is_not_opened():
    first, second = add(2)
    set_columns(second, gate=2)
    ack(take()[first])
    assert sweeps.OrderingSweep().sweep_all(None, using="default")["jobs_opened"] == 0
    assert taken() == []


def test_a_claim_ends_a_bounded_number_of_expired_jobs_of_one_key():
    ids = add(30)
    Job.objects.filter(pk__in=ids).update(expires_at=UtcNowPlus(-1))
    assert taken() == []
    ended = Job.objects.filter(status=Job.Status.CANCELED).count()
    assert 5 <= ended < 30
    while Job.objects.filter(status=Job.Status.READY).exists():
        assert taken() == []
    assert places() == []


@pytest.mark.django_db(transaction=True)
def test_an_error_after_the_commit_of_a_producer_does_not_reach_it(monkeypatch, caplog):
    def broken(*_arguments, **_options):
        raise RuntimeError("not an error of the database")

    monkeypatch.setattr("jobqueue.ordering.promote.promote", broken)
    with transaction.atomic():
        (first,) = add(1)
    assert "Error calling" in caplog.text
    assert "not an error of the database" in caplog.text
    monkeypatch.undo()
    sweeps.OrderingSweep().sweep_all(load(), using="default")
    assert taken() == [first]
