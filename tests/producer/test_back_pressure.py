"""A queue with MAX_READY jobs, or one that drains, refuses or delays producers, and their transaction goes on."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue, enqueue_many
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import JobQueueError, QueueFull
from jobqueue.flow import drain, pause, resume
from jobqueue.gates import backlog
from jobqueue.gates.backlog import ended_per_second
from jobqueue.models import Job
from jobqueue.producer import back_pressure
from jobqueue.transitions import ack, claim, fail, reap, retry
from tests.app.tasks import greet
from tests.factories import claim_one, expire, job, make_due, now, seconds_from_now, set_columns, was_ahead
from tests.marks import finding

pytestmark = pytest.mark.django_db


@pytest.fixture
def full_at(settings):
    """full_at(n): MAX_READY of queue "q"; other settings of it are given by name."""

    def configure(most, **own):
        settings.JOBQUEUE = {"QUEUES": {"q": {"MAX_READY": most, **own}}}

    return configure


def count_again():
    """Let a second pass: producers count the jobs that wait once in that time."""
    back_pressure._backlogs._known.clear()


def fill(count):
    return [enqueue("q", n) for n in range(count)]


def total():
    return Job.objects.count()


class TestRefuse:
    def test_is_what_a_full_queue_does_if_nothing_else_is_set(self, full_at):
        full_at(3)
        fill(3)
        with pytest.raises(QueueFull) as caught:
            enqueue("q", "one more")
        assert (caught.value.queue, caught.value.ready) == ("q", 3)
        assert total() == 3

    def test_is_an_error_of_ours_and_a_value_error(self, full_at):
        full_at(1)
        fill(1)
        with pytest.raises(ValueError, match="MAX_READY") as caught:
            enqueue("q", 1)
        assert isinstance(caught.value, JobQueueError)

    def test_says_what_happened_what_follows_and_what_to_do(self, full_at):
        full_at(1)
        fill(1)
        with pytest.raises(QueueFull, match=r"'q'.*MAX_READY is 1.*Nothing was written. Try again later"):
            enqueue("q", 1)

    def test_leaves_the_caller_s_transaction_usable(self, full_at):
        full_at(2)
        with transaction.atomic():
            fill(2)
            with pytest.raises(QueueFull):
                enqueue("q", "too much")
            other = enqueue("elsewhere", "instead")
        assert job(other).queue == "elsewhere"
        assert total() == 3

    def test_of_many_adds_none_of_them(self, full_at):
        full_at(5)
        fill(3)
        with pytest.raises(QueueFull) as caught:
            enqueue_many("q", range(3))
        assert caught.value.ready == 3
        assert total() == 3
        assert len(enqueue_many("q", range(2))) == 2

    def test_of_a_bulk_that_can_never_fit_is_the_same(self, full_at):
        full_at(5)
        with pytest.raises(QueueFull):
            enqueue_many("q", range(6))
        assert total() == 0

    def test_a_bulk_that_was_refused_does_not_count(self, full_at):
        full_at(5)
        for _ in range(3):
            with pytest.raises(QueueFull):
                enqueue_many("q", range(100))
        assert len(fill(5)) == 5

    def test_of_a_task_is_the_same(self, full_at):
        full_at(1)
        work = greet.using(queue_name="q")
        work.enqueue("a", 1)
        with pytest.raises(QueueFull):
            work.enqueue("b", 2)
        assert total() == 1

    def test_ends_when_jobs_have_been_taken(self, full_at):
        full_at(2)
        fill(2)
        with pytest.raises(QueueFull):
            enqueue("q", 1)
        ack(claim_one())
        count_again()
        enqueue("q", 2)
        with pytest.raises(QueueFull):
            enqueue("q", 3)

    def test_does_not_reach_other_queues(self, full_at):
        full_at(1)
        fill(1)
        for n in range(5):
            enqueue("elsewhere", n)
        assert total() == 6


class TestWhatCounts:
    def test_jobs_that_run_do_not(self, full_at):
        full_at(2)
        fill(2)
        claim("q", 2, worker="w")
        count_again()
        assert len(fill(2)) == 2

    def test_jobs_for_later_neither_count_nor_are_refused(self, full_at):
        full_at(2)
        later = now() + timedelta(hours=1)
        enqueue_many("q", range(10), run_at=later)
        count_again()
        fill(2)
        enqueue("q", "later", run_at=later)
        with pytest.raises(QueueFull):
            enqueue("q", "now")

    def test_jobs_whose_time_has_come_do(self, full_at):
        full_at(2)
        ids = enqueue_many("q", range(2), run_at=now() + timedelta(hours=1))
        for job_id in ids:
            make_due(job_id)
        count_again()
        with pytest.raises(QueueFull):
            enqueue("q", "now")

    def test_a_run_at_in_the_past_is_now(self, full_at):
        full_at(1)
        fill(1)
        with pytest.raises(QueueFull):
            enqueue("q", 1, run_at=now() - timedelta(hours=1))

    def test_jobs_of_all_priorities_do(self, full_at):
        full_at(4)
        for priority in (-5, 0, 3, 9):
            enqueue("q", 1, priority=priority)
        count_again()
        with pytest.raises(QueueFull) as caught:
            enqueue("q", 1, priority=100)
        assert caught.value.ready == 4

    @pytest.mark.parametrize("gate", [1, 2, 3])
    def test_jobs_that_wait_at_a_gate_do(self, full_at, gate):
        full_at(2)
        for job_id in fill(2):
            set_columns(job_id, gate=gate)
        count_again()
        with pytest.raises(QueueFull):
            enqueue("q", 1)

    def test_jobs_that_have_ended_do_not(self, full_at):
        full_at(2)
        for job_id in fill(2):
            set_columns(job_id, status=Job.Status.CANCELED)
        count_again()
        assert len(fill(2)) == 2

    def test_the_jobs_of_a_paused_queue_do(self, full_at):
        full_at(2)
        pause("q", reason="r")
        fill(2)
        with pytest.raises(QueueFull):
            enqueue("q", 1)


class TestWhoIsNotRefused:
    def test_a_retry_by_hand(self, full_at):
        full_at(1)
        (first,) = fill(1)
        lease = claim_one()
        fail(lease._replace(max_attempts=1), error="boom")
        count_again()
        fill(1)
        assert retry(first)

    def test_an_attempt_that_failed_or_was_lost(self, full_at):
        full_at(2)
        first, second = fill(2)
        leases = {lease.job_id: lease for lease in claim("q", 2, worker="w")}
        count_again()
        fill(2)
        fail(leases[first], error="boom", delay_seconds=0)
        expire(leases[second])
        assert reap().requeued == 1
        assert Job.objects.filter(status=Job.Status.READY).count() == 4


class TestDelay:
    def test_moves_the_jobs_that_are_too_many_by_the_time_that_the_excess_needs(self, full_at):
        full_at(2, WHEN_FULL="delay", RATE="1/s")
        begun = now()
        first, second, third, fourth = (job(job_id) for job_id in fill(4))
        assert seconds_from_now(first.run_at) <= 0
        assert seconds_from_now(second.run_at) <= 0
        assert was_ahead(third.run_at, 1, 1, since=begun)
        assert was_ahead(fourth.run_at, 2, 2, since=begun)

    def test_goes_by_how_fast_jobs_have_ended_lately(self, full_at):
        full_at(2, WHEN_FULL="delay")
        done, begun = fill(2), now()
        for job_id in done:
            set_columns(job_id, status=Job.Status.DONE, finished_at=UtcNowPlus(-10))
        count_again()
        fill(2)
        count_again()
        (late,) = fill(1)
        # Two jobs in ten seconds, and in those that have passed meanwhile: one job needs five, and half of those.
        most = 5.5 + (now() - begun).total_seconds() / 2
        assert was_ahead(job(late).run_at, 3, most, since=begun)

    @finding("F12")
    def test_goes_by_the_rate_of_a_fast_queue_whose_ends_are_written_together(self):
        # 5,000 ends in a second, a hundred at each instant.
        moments = [now() - timedelta(seconds=number / 50) for number in range(50)]
        done = {"queue": "q", "payload": {}, "status": Job.Status.DONE}
        Job.objects.bulk_create(Job(finished_at=at, **done) for at in moments for _ in range(100))
        rate = ended_per_second("q", "default")
        assert 4900 / (now() - moments[-1]).total_seconds() <= rate <= 5001

    def test_counts_the_ends_of_all_priorities_in_the_time_for_which_all_are_known(self, monkeypatch):
        monkeypatch.setattr(backlog, "SAMPLES", (100,))
        done = {"queue": "q", "payload": {}, "status": Job.Status.DONE}
        Job.objects.bulk_create(Job(finished_at=now(), **done) for _ in range(200))
        Job.objects.bulk_create(Job(finished_at=now() - timedelta(seconds=40), priority=5, **done) for _ in range(3))
        begun = min(Job.objects.filter(priority=0).values_list("finished_at", flat=True))
        rate = ended_per_second("q", "default")
        assert rate >= 100 / max(1.0, (now() - begun).total_seconds())

    def test_is_longer_the_more_jobs_there_are(self, full_at):
        full_at(10, WHEN_FULL="delay", RATE="10/s")
        Job.objects.bulk_create([Job(queue="q", payload={}) for _ in range(180)])
        begun = now()
        (late,) = fill(1)
        assert was_ahead(job(late).run_at, 16, 17.2, since=begun)
        assert len(set(fill(5))) == 5
        assert seconds_from_now(job(fill(1)[0]).run_at) <= 18

    def test_counts_no_more_jobs_than_it_may(self, full_at, monkeypatch):
        monkeypatch.setattr(back_pressure, "EXCESS_MAX", 20)
        full_at(10, WHEN_FULL="delay", RATE="10/s")
        Job.objects.bulk_create([Job(queue="q", payload={}) for _ in range(180)])
        begun = now()
        (late,) = fill(1)
        assert was_ahead(job(late).run_at, 1.5, 2.2, since=begun)

    def test_is_a_minute_where_no_job_has_ended(self, full_at):
        full_at(1, WHEN_FULL="delay")
        begun = now()
        _, late = fill(2)
        assert was_ahead(job(late).run_at, 50, 60, since=begun)

    def test_is_an_hour_at_most(self, full_at):
        full_at(1, WHEN_FULL="delay", RATE="1/h")
        ids = enqueue_many("q", range(50))
        assert max(seconds_from_now(job(job_id).run_at) for job_id in ids) <= 3600

    def test_leaves_jobs_alone_that_were_for_later_anyway(self, full_at):
        full_at(1, WHEN_FULL="delay")
        fill(1)
        later = now() + timedelta(days=3)
        assert job(enqueue("q", 1, run_at=later)).run_at == later

    def test_loses_no_job_and_refuses_none(self, full_at):
        full_at(3, WHEN_FULL="delay", RATE="100/s")
        assert len(set(fill(20))) == 20
        assert total() == 20

    def test_of_a_job_is_like_a_run_at_that_the_caller_gave(self, full_at):
        full_at(1, WHEN_FULL="delay")
        first, late = fill(2)
        by_hand = enqueue("elsewhere", 1, run_at=now() + timedelta(minutes=1))
        assert [lease.job_id for lease in claim("q", 10, worker="w")] == [first]
        assert job(late).wait_reason == job(by_hand).wait_reason
        make_due(late)
        assert claim_one().job_id == late


class TestDrain:
    def test_refuses_all_new_jobs_also_those_for_later(self):
        drain("q", reason="the queue moves")
        for call in (
            lambda: enqueue("q", 1),
            lambda: enqueue("q", 1, run_at=now() + timedelta(hours=1)),
            lambda: enqueue_many("q", [1, 2]),
            lambda: greet.using(queue_name="q").enqueue("a", 1),
        ):
            with pytest.raises(QueueFull, match="draining") as caught:
                call()
            assert caught.value.ready is None
        assert total() == 0

    def test_is_stronger_than_delay(self, full_at):
        full_at(5, WHEN_FULL="delay")
        drain("q", reason="r")
        with pytest.raises(QueueFull):
            enqueue("q", 1)

    def test_leaves_the_caller_s_transaction_usable(self):
        drain("q", reason="r")
        with transaction.atomic():
            with pytest.raises(QueueFull):
                enqueue("q", 1)
            enqueue("elsewhere", 1)
        assert total() == 1

    def test_lets_a_retry_by_hand_through(self):
        first = enqueue("q", 1)
        fail(claim_one()._replace(max_attempts=1), error="boom")
        drain("q", reason="r")
        assert retry(first)

    def test_ends_with_resume(self):
        drain("q", reason="r")
        resume("q")
        assert enqueue("q", 1)


def test_two_full_queues_are_counted_one_by_one(settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"MAX_READY": 2}, "p": {"MAX_READY": 3}}}
    fill(2)
    for n in range(3):
        enqueue("p", n)
    for queue, ready in (("q", 2), ("p", 3)):
        with pytest.raises(QueueFull) as caught:
            enqueue(queue, 1)
        assert (caught.value.queue, caught.value.ready) == (queue, ready)


def test_what_this_process_has_added_counts_at_once_and_others_within_a_second(full_at):
    full_at(5)
    fill(3)
    # As another process: this one does not see it before it counts again.
    Job.objects.bulk_create([Job(queue="q", payload={}) for _ in range(4)])
    fill(2)
    with pytest.raises(QueueFull):
        enqueue("q", 1)
    count_again()
    with pytest.raises(QueueFull) as caught:
        enqueue("q", 1)
    assert caught.value.ready >= 5


def test_a_queue_without_max_ready_costs_no_statement_more(settings, read_once):
    settings.JOBQUEUE = {"QUEUES": {"elsewhere": {"MAX_READY": 5}}}
    fill(1)
    with CaptureQueriesContext(connection) as seen:
        fill(1)
    assert len(seen) == 1


def test_the_count_reads_no_more_rows_than_matter(full_at):
    full_at(3)
    Job.objects.bulk_create([Job(queue="q", payload={}) for _ in range(50)])
    with pytest.raises(QueueFull) as caught:
        enqueue("q", 1)
    assert caught.value.ready == 4, "it counts up to one more than there may be"


class TestARepeat:
    """A job whose dedupe key is held adds nothing, so a full or draining queue does not refuse it."""

    @pytest.fixture
    def held(self, full_at):
        full_at(1)
        return enqueue("q", 1, dedupe_key="k")

    def test_gets_the_id_of_the_job_that_holds_its_key(self, held):
        assert enqueue("q", 1, dedupe_key="k") == held
        with pytest.raises(QueueFull):
            enqueue("q", 1, dedupe_key="other")

    def test_gets_it_from_a_draining_queue_too(self, held):
        drain("q", reason="moves")
        assert enqueue("q", 1, dedupe_key="k") == held

    def test_does_not_let_the_new_jobs_of_its_bulk_in(self, held):
        assert enqueue_many("q", [1, 1], dedupe_keys=["k", "k"]) == [held, held]
        with pytest.raises(QueueFull):
            enqueue_many("q", [1, 2], dedupe_keys=["k", "new"])
        assert total() == 1

    def test_takes_no_room_from_new_jobs(self, full_at):
        full_at(3)
        for _ in range(5):
            enqueue("q", 1, dedupe_key="k")
            enqueue_many("q", [1, 2], dedupe_keys=["k", "k"])
        fill(2)
        with pytest.raises(QueueFull):
            enqueue("q", 1)
        assert total() == 3

    def test_delays_no_new_job(self, full_at):
        full_at(3, WHEN_FULL="delay")
        for _ in range(9):
            enqueue("q", 1, dedupe_key="k")
        assert [seconds_from_now(job(one).run_at) <= 0 for one in fill(3)] == [True, True, False]

    def test_beside_new_jobs_in_a_bulk_takes_no_room(self, full_at):
        full_at(4)
        enqueue("q", 1, dedupe_key="k")
        enqueue_many("q", [1, 2, 3], dedupe_keys=["k", "new", None])
        enqueue("q", "the fourth")
        with pytest.raises(QueueFull):
            enqueue("q", 1)
        assert total() == 4

    def test_is_counted_once_in_a_bulk(self, full_at):
        full_at(1)
        first, second = enqueue_many("q", [1, 2], dedupe_keys=["k", "k"])
        assert first == second
