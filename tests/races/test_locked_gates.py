"""A session that keeps locks of gates, as a frozen claim does: others start and end jobs meanwhile, without a wait."""

import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue import task
from jobqueue.db import is_lost_connection
from jobqueue.exceptions import DatabaseBusy
from jobqueue.flow import set_limit
from jobqueue.gates import breaker, timing
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.models import BreakerState, Gate, GateSlot, GateWait, Job
from jobqueue.transitions import ack, cancel, claim
from jobqueue.transitions.claiming import select_then_update
from jobqueue.transitions.claiming.claimer import Claimer
from tests.factories import make_jobs, now
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, sweep, take, taken, waiting
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.usefixtures("own_registry"),
    pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time: it has no locks of rows"),
]


def made(function=jobs.work, **fields):
    return task(queue_name="q", **fields)(function)


def without_a_wait(work, *args, **kwargs):
    """What `work` returns; it has waited for no lock."""
    actor = Actor(work, *args, **kwargs)
    assert not actor.is_blocked()
    return actor.result()


def locked(rows):
    """A block in which another session has these rows locked."""
    return holding(lambda: list(rows.select_for_update()))


@pytest.fixture
def frozen_claim(monkeypatch):
    """frozen_claim(): a block in which a claim of queue "q" has come as far as its last write."""
    stamp = select_then_update.stamp

    @contextmanager
    def freeze():
        reached, go_on = threading.Event(), threading.Event()

        def stop(leases, token, request):
            if request.worker == "frozen" and leases:
                reached.set()
                assert go_on.wait(4 * patient())
            return stamp(leases, token, request)

        monkeypatch.setattr(select_then_update, "stamp", stop)
        actor = Actor(claim, "q", 1, worker="frozen")
        assert reached.wait(patient())
        try:
            yield
        finally:
            go_on.set()
        actor.result()

    return freeze


class TestAClaimThatIsFrozen:
    @finding("F1")
    def test_in_a_queue_with_a_limit_keeps_no_other_claim_waiting(self, frozen_claim):
        set_limit("q", concurrency=2)
        first, second = make_jobs(2)
        with frozen_claim():
            assert without_a_wait(taken) == []
        assert Job.objects.get(pk=first).status == Job.Status.PROCESSING
        assert taken() == [second]

    def test_in_a_queue_with_a_limit_has_committed_the_gate_before_so_that_nobody_waits_for_it(self, frozen_claim):
        set_limit("q", concurrency=2)
        make_jobs(1)
        with frozen_claim():
            assert Actor(Gate.objects.count).result() == 1

    def test_finds_that_the_gate_was_deleted_and_makes_it_again(self):
        set_limit("q", concurrency=2)
        claimer, ids = Claimer("w", "default"), make_jobs(2)
        assert [lease.job_id for lease in claimer.claim("q", 1, lease_seconds=60)] == ids[:1]
        Gate.objects.all().delete()
        assert claimer.claim("q", 1, lease_seconds=60) == []
        wait_until(lambda: claimer.claim("q", 1, lease_seconds=60), what="a claim after the short pause")

    @pytest.mark.parametrize(
        "used",
        [
            pytest.param(False, id="with a new slot", marks=[finding("F1")] if VENDOR == "mysql" else []),
            pytest.param(True, id="with a slot that was used before", marks=finding("F1")),
        ],
    )
    def test_with_a_slot_lets_jobs_without_a_limit_start(self, frozen_claim, used):
        work, other = made(concurrency_limit=2), made(jobs.other)
        if used:
            for lease in (add(1, work) and take()).values():
                ack(lease)
        (first,) = add(1, work)
        with frozen_claim():
            (second,), (free,) = add(1, work), add(1, other)
            assert without_a_wait(taken) == [free]
        assert Job.objects.get(pk=first).status == Job.Status.PROCESSING
        assert second in [*taken(), *taken()]

    @finding("F1")
    def test_with_a_token_lets_jobs_without_a_limit_start(self, frozen_claim):
        work, other = made(rate_limit="1000/s"), made(jobs.other)
        add(1, work)
        taken()
        (first,) = add(1, work)
        with frozen_claim():
            (second,), (free,) = add(1, work), add(1, other)
            assert without_a_wait(taken) == [free]
        assert Job.objects.get(pk=first).status == Job.Status.PROCESSING
        look_again()
        sweep()
        look_again()
        assert taken() == [second]

    @finding("F1")
    def test_that_puts_jobs_behind_a_gate_lets_others_do_so(self, frozen_claim):
        work = made(concurrency_limit=1)
        (lease,) = (add(1, work) and take()).values()
        add(1, work)
        assert taken() == []
        (free,) = add(1, made(jobs.other), "free")
        with locked(Gate.objects.all()):
            (late,) = add(1, work)
            assert without_a_wait(taken) == [free]
            assert late in waiting()
        ack(lease)
        assert len(taken()) == 1

    @finding("F1")
    def test_as_the_probe_of_a_breaker_lets_jobs_without_a_dependency_start(self):
        open_breaker()
        (first,) = add(1, made(dependency="stripe"))
        (free,) = add(1, made(jobs.other))
        with locked(BreakerState.objects.all()):
            assert without_a_wait(taken) == [free]
        assert waiting() == [first]
        look_again()
        assert taken() == [first]

    @finding("F1")
    def test_as_the_probe_of_a_breaker_lets_ends_be_written(self):
        open_breaker()
        with locked(BreakerState.objects.all()):
            outcome = Actor(breaker.failed, "stripe", [[Run(1, 1, 1.0, 0.0)]], using="default")
            assert not outcome.is_blocked()
            assert isinstance(outcome.outcome(), DatabaseBusy)


def open_breaker():
    breaker.failed("stripe", [[Run(n, 1, 1.0, 0.0)] for n in range(5)], using="default")
    BreakerState.objects.update(probe_at=now())
    forget_rules()


class TestALockedRowOfAJobThatWaits:
    @finding("F5")
    def test_is_passed_over_by_whoever_opens_its_gate(self):
        (lease,) = (add(1, made(concurrency_limit=1)) and take()).values()
        first, second = add(2, made(concurrency_limit=1))
        assert taken() == []
        with locked(Job.objects.filter(pk=first)):
            without_a_wait(ack, lease)
            assert waiting() == [first]
            (lease,) = take().values()
            assert lease.job_id == second
        ack(lease)
        assert taken() == [first]
        assert GateWait.objects.count() == 0

    @finding("F5")
    def test_is_looked_at_again_if_nobody_stands_behind_it(self):
        (lease,) = (add(1, made(concurrency_limit=1)) and take()).values()
        (first,) = add(1, made(concurrency_limit=1))
        assert taken() == []
        with locked(Job.objects.filter(pk=first)):
            without_a_wait(ack, lease)
            assert without_a_wait(look_again) == 0
            assert waiting() == [first]
        look_again()
        assert taken() == [first]

    @finding("F5")
    def test_keeps_no_other_gate_from_being_opened(self):
        work = made(concurrency_limit=1, concurrency_key=jobs.by_argument)
        leases = [work.enqueue(key) and next(iter(take().values())) for key in "ab"]
        first, second = (int(work.enqueue(key).id) for key in "ab")
        assert taken() == []
        for lease in leases:
            # As after a crash between this commit and the opening.
            Job.objects.filter(pk=lease.job_id).update(
                status=Job.Status.DONE, locked_by=None, lock_token=None, locked_at=None, lock_until=None
            )
        Gate.objects.update(opens_at=now())
        with locked(Job.objects.filter(pk=first)):
            assert without_a_wait(open_in_time) == 1
            assert taken() == [second]
            assert without_a_wait(sweep)["gates_jobs_opened"] == 0

    def test_that_is_gone_leaves_no_row_behind(self):
        (lease,) = (add(1, made(concurrency_limit=1)) and take()).values()
        first, second = add(2, made(concurrency_limit=1))
        assert taken() == []
        Job.objects.filter(pk=first).delete()
        ack(lease)
        assert taken() == [second]
        assert GateWait.objects.count() == 0


def test_a_gate_that_a_transaction_keeps_locked_stops_no_other_gate():
    (lease,) = (add(1, made(concurrency_limit=1)) and take()).values()
    add(1, made(concurrency_limit=1))
    assert taken() == []
    with locked(Gate.objects.all()):
        without_a_wait(ack, lease)
        assert len(without_a_wait(taken)) == 1
    assert GateSlot.objects.count() == 1


@finding("F1")
class TestTheServerEndsASession:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr("jobqueue.db.sessions.IDLE_SECONDS", 1.0)

    def test_of_a_workers_own_threads_that_idles_within_a_transaction(self):
        (job_id,) = make_jobs(1)
        from jobqueue.db.sessions import limit_idle_transactions

        opened, over = threading.Event(), threading.Event()

        def idle():
            limit_idle_transactions("default")
            with transaction.atomic():
                Job.objects.select_for_update().get(pk=job_id)
                opened.set()
                assert over.wait(4 * patient())
                Job.objects.update(priority=5)

        frozen = Actor(idle)
        try:
            assert opened.wait(patient())
            Actor(cancel, job_id).result()
        finally:
            over.set()
        assert is_lost_connection(frozen.outcome(), "default")
        assert Job.objects.get(pk=job_id).priority == 0


def test_gates_that_others_have_locked_keep_back_none_of_those_behind_them(monkeypatch):
    """However many of them have come due before."""
    monkeypatch.setattr(timing, "CHUNK", 2)
    paced = made(concurrency_key=jobs.by_argument, rate_limit="1/m")
    for key in "abcd":
        add(2, paced, key)
    take()
    assert len(waiting()) == 4
    Gate.objects.update(used_until=None, opens_at=now() - timedelta(seconds=9))
    last = max(Gate.objects.values_list("pk", flat=True))
    Gate.objects.filter(pk=last).update(opens_at=now() - timedelta(seconds=1))
    with locked(Gate.objects.exclude(pk=last)):
        assert without_a_wait(open_in_time) == 1
