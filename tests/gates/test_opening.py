"""Gates open when there is something free, for as many jobs as may start, and no job is lost if a process dies."""

import pytest
from django.db import DatabaseError, OperationalError, transaction

from jobqueue import wakeup
from jobqueue.db.clock import UtcNowPlus
from jobqueue.flow import breaker, pause, set_limit
from jobqueue.gates import waiting as gates
from jobqueue.gates.limits import slot_subject
from jobqueue.gates.rules import forget_rules
from jobqueue.gates.timing import any_limited, any_timed, open_due
from jobqueue.gates.waiting import open_first, open_free
from jobqueue.models import Gate, GateWait, Job
from jobqueue.tasks import registry
from jobqueue.transitions import ack, ack_many
from jobqueue.transitions.claiming import select_then_update
from jobqueue.worker.monitor.housekeeping import GateOpener
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.factories import job
from tests.gates import jobs
from tests.gates.helpers import add, rows_of_waiting, sweep, take, taken, waiting
from tests.marks import committed

pytestmark = pytest.mark.django_db


@pytest.fixture
def behind(limited):
    """behind(n): the lease of a job of a task with one slot, and the ids of n jobs that wait behind it."""

    def make(count, **fields):
        work = limited(concurrency_limit=1, **fields)
        first, *rest = add(count + 1, work)
        lease = take()[first]
        assert taken() == []
        return lease, rest

    return make


SUBJECT = slot_subject("q", jobs.WORK).number


def test_a_slot_that_is_freed_opens_one_gate(behind):
    lease, rest = behind(5)
    ack(lease)
    assert waiting() == rest[1:]
    assert rows_of_waiting() == rest[1:]


def test_as_many_gates_open_as_slots_are_freed_at_once(limited):
    ids = add(9, limited(concurrency_limit=3))
    leases = take()
    assert taken() == []
    ack_many(list(leases.values()))
    assert waiting() == ids[6:]


def test_the_gate_of_one_job_opens_once_whoever_opens_it(behind):
    _, rest = behind(3)
    assert open_first({SUBJECT: 1}, using="default") == 1
    assert open_first({SUBJECT: 5}, using="default") == 2
    assert open_first({SUBJECT: 1}, using="default") == 0
    assert waiting() == []
    assert set(Job.objects.filter(pk__in=rest).values_list("gate", "wait_reason")) == {(0, None)}


def test_too_many_open_gates_let_no_job_in(behind):
    lease, rest = behind(3)
    open_first({SUBJECT: 3}, using="default")
    assert taken() == []
    assert waiting() == rest
    ack(lease)
    assert taken() == rest[:1]


def test_rows_of_jobs_that_were_canceled_are_passed_over(behind):
    lease, rest = behind(4)
    Job.objects.filter(pk__in=rest[:2]).update(status=Job.Status.CANCELED)
    ack(lease)
    assert taken() == rest[2:3]


def test_rows_of_jobs_that_were_deleted_are_passed_over(behind):
    lease, rest = behind(1200)
    Job.objects.filter(pk__in=rest[:1100]).delete()
    ack(lease)
    assert taken() == rest[1100:1101]


def test_a_slot_that_is_freed_while_a_claim_closes_gates_opens_one(behind, monkeypatch):
    # The holder ends after the claim has found the slot taken, and finds nobody who waits yet.
    behind(0)
    (second,) = add(1, registry.find_task(jobs.WORK))
    close = select_then_update.close_gates

    def late(*arguments):
        Job.objects.filter(status=Job.Status.PROCESSING).update(
            status=Job.Status.DONE, locked_by=None, lock_token=None, locked_at=None, lock_until=None
        )
        return close(*arguments)

    monkeypatch.setattr(select_then_update, "close_gates", late)
    found = taken()
    monkeypatch.setattr(select_then_update, "close_gates", close)
    assert found + taken() == [second]


def test_workers_are_woken_when_a_gate_opens(behind, monkeypatch):
    woken = []
    monkeypatch.setattr(wakeup, "notify", lambda queue, using: woken.append(queue))
    lease, _ = behind(1)
    woken.clear()
    ack(lease)
    assert woken == ["q"]


def test_a_process_is_told_how_many_jobs_it_has_opened_by_queue(behind, monkeypatch):
    told = []
    monkeypatch.setattr(gates, "_opened_callback", lambda counts: told.append(dict(counts)))
    lease, _ = behind(1)
    ack(lease)
    assert told == [{"q": 1}]


def test_nobody_is_woken_when_nobody_waits(behind, monkeypatch):
    woken = []
    monkeypatch.setattr(wakeup, "notify", lambda queue, using: woken.append(queue))
    lease, _ = behind(0)
    woken.clear()
    ack(lease)
    assert woken == []


@pytest.mark.parametrize("error", [OperationalError("gone"), DatabaseError("no")])
def test_an_ack_is_written_although_the_next_gate_cannot_be_opened(behind, monkeypatch, caplog, error):
    lease, rest = behind(1)

    def broken(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(gates, "_first", broken)
        ack(lease)
    assert job(lease.job_id).status == Job.Status.DONE
    assert "sweep" in caplog.text
    assert waiting() == rest
    sweep()
    assert taken() == rest


@committed
def test_an_ack_in_a_transaction_opens_the_gate_when_that_is_committed(limited):
    first, second = add(2, limited(concurrency_limit=1))
    lease = take()[first]
    assert taken() == []
    with transaction.atomic():
        ack(lease)
        assert waiting() == [second]
    assert taken() == [second]


@committed
def test_an_ack_that_is_rolled_back_opens_nothing(limited):
    first, second = add(2, limited(concurrency_limit=1))
    lease = take()[first]
    assert taken() == []
    with transaction.atomic():
        ack(lease)
        transaction.set_rollback(True)
    assert waiting() == [second]
    assert taken() == []


def test_the_hint_of_free_slots_opens_as_many_as_are_free(limited):
    ids = add(6, limited(concurrency_limit=4))
    taken()
    assert taken() == []
    Job.objects.filter(pk__in=ids[:3]).update(
        status=Job.Status.DONE, locked_by=None, lock_token=None, locked_at=None, lock_until=None
    )
    assert open_free([SUBJECT], using="default") == 2
    assert taken() == ids[4:]


def test_no_time_is_looked_at_where_no_gate_has_one(limited, django_assert_num_queries):
    add(2, limited(concurrency_limit=1))
    taken()
    with django_assert_num_queries(1):
        assert any_timed("default") is False
    with django_assert_num_queries(1):
        assert open_due(using="default") == 0


def test_the_monitor_starts_its_thread_when_a_gate_has_a_time(limited, monkeypatch):
    opener, started = GateOpener("default", Scoreboard(1, 1), lambda: None, None), []
    monkeypatch.setattr(opener.thread, "start", lambda: started.append(True))
    opener.wake()
    assert started == []
    add(2, limited(rate_limit="1/h"))
    taken()
    taken()
    opener.wake()
    assert started == [True]


def test_a_job_that_comes_back_to_a_gate_has_one_row_there(limited):
    work = limited(concurrency_limit=1)
    first, second = add(2, work)
    lease = take()[first]
    for _ in range(3):
        assert taken() == []
        # As an older release, or plain SQL, opens it: the row stays.
        Job.objects.filter(pk=second).update(gate=0, wait_reason=None)
    assert taken() == []
    assert list(GateWait.objects.values_list("job_id", flat=True)) == [second]
    ack(lease)
    assert taken() == [second]
    assert Gate.objects.count() == 1


class TestADrainWaits:
    """any_limited(): whether due jobs start as soon as a limit lets them."""

    def limited_wait(self, *queues):
        forget_rules()
        return any_limited(lambda queue: queue in (queues or ("q",)), "default")

    @pytest.mark.parametrize("limit", [{"concurrency_limit": 1}, {"rate_limit": "1/h"}])
    def test_for_a_slot_and_a_token_of_its_queues(self, limited, limit):
        add(2, limited(**limit))
        taken()
        assert taken() == []
        assert self.limited_wait()
        assert not self.limited_wait("other")

    def test_for_the_limit_of_a_whole_queue(self, plain):
        add(2, plain)
        assert not self.limited_wait()
        set_limit("q", rate="1/h")
        assert len(taken()) == 1
        assert self.limited_wait()
        set_limit("q", rate=0)
        assert not self.limited_wait()

    def test_not_for_what_is_due_later(self, limited):
        add(2, limited(concurrency_limit=1))
        taken()
        taken()
        GateWait.objects.update(run_at=UtcNowPlus(60))
        assert not self.limited_wait()

    @pytest.mark.parametrize("whole", [False, True])
    def test_not_for_what_is_paused(self, limited, whole):
        work = limited(concurrency_limit=1)
        add(2, work)
        taken()
        taken()
        pause("q", task=None if whole else work, reason="r")
        assert not self.limited_wait()

    def test_not_for_a_breaker(self, limited):
        breaker("stripe").open("r")
        add(2, limited(dependency="stripe"))
        assert taken() == []
        assert not self.limited_wait()


def test_jobs_behind_a_gate_of_a_kind_that_a_later_release_had_are_asked_again(behind):
    lease, rest = behind(3)
    ack(lease)
    ids = waiting()
    Job.objects.filter(pk__in=ids).update(wait_reason=f"moon {jobs.WORK}")
    Gate.objects.filter(pk=SUBJECT).update(wait_reason=f"moon {jobs.WORK}", most=None, opens_at=UtcNowPlus(0))
    assert open_due(using="default") == len(ids) == 2
    assert taken() == rest[:1]
    assert set(Job.objects.filter(pk__in=ids).values_list("wait_reason", flat=True)) == {f"slot {jobs.WORK}"}
