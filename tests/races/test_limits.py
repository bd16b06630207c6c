"""Claims at the same time: no limit of slots or rates is ever passed, and nobody is left behind a gate that is free."""

import threading
import time
from collections import Counter
from datetime import timedelta

import pytest

from jobqueue import enqueue, task
from jobqueue.exceptions import LeaseLost, QueueFull
from jobqueue.flow import pause, resume, set_limit
from jobqueue.gates import admit, breaker
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.gates.waiting import delete_waits, open_jobs
from jobqueue.models import BreakerState, Gate, GateWait, Job
from jobqueue.transitions import ack, ack_many, cancel, claim, fail, heartbeat, reap, release
from jobqueue.transitions.claiming import select_then_update
from jobqueue.transitions.claiming.claimer import Claimer
from tests.factories import expire, make_jobs, now
from tests.gates import jobs
from tests.gates.helpers import add, look_again, sweep, taken, waiting
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
needs_row_locks = pytest.mark.skipif(
    VENDOR == "sqlite", reason="SQLite has one writer at a time: a second transaction waits for the first"
)
CLAIMERS, ROUNDS = 6, 8


def made(**fields):
    return task(queue_name="q", **fields)(jobs.work)


class Observer:
    """Counts from outside what runs at once: by a name that each test gives to a lease."""

    def __init__(self, name=lambda lease: None):
        self._name, self._lock = name, threading.Lock()
        self._running, self.most, self.ran = Counter(), Counter(), []

    def begins(self, lease):
        with self._lock:
            name = self._name(lease)
            self._running[name] += 1
            self.most[name] = max(self.most[name], self._running[name])

    def ends(self, lease):
        with self._lock:
            self._running[self._name(lease)] -= 1
            self.ran.append(lease.job_id)


def work_off(observer, number, count, end=ack):
    """A worker's claims and ends, until `count` jobs have run in all workers."""
    claimer = Claimer(f"w{number}", "default")
    idle = 0
    while len(observer.ran) < count and idle < 2000:
        leases = claimer.claim("q", 1 + number % 3, lease_seconds=600)
        for lease in leases:
            observer.begins(lease)
        for lease in leases:
            # Before the write: its commit frees the slot.
            observer.ends(lease)
            end(lease)
        idle = 0 if leases else idle + 1


def all_work(observer, count, end=ack):
    outcomes = all_at_once([lambda n=n: work_off(observer, n, count, end) for n in range(CLAIMERS)])
    assert outcomes == [None] * CLAIMERS


class TestWorkersAtTheSameTime:
    @pytest.mark.parametrize("most", [1, 3])
    def test_run_no_more_jobs_of_a_task_than_its_limit_and_run_all(self, most):
        ids, observer = add(40, made(concurrency_limit=most)), Observer()
        all_work(observer, len(ids))
        assert observer.most[None] <= most
        assert sorted(observer.ran) == ids
        assert (waiting(), GateWait.objects.count()) == ([], 0)

    def test_run_no_more_jobs_of_a_key_than_its_limit_and_run_all(self):
        work, observer = made(concurrency_limit=1, concurrency_key=jobs.by_argument), Observer(_key)
        ids = [int(work.enqueue(f"k{n % 5}").id) for n in range(40)]
        all_work(observer, len(ids))
        assert set(observer.most.values()) == {1}
        assert sorted(observer.ran) == ids
        assert waiting() == []

    def test_run_no_more_jobs_of_a_queue_than_its_limit_and_run_all(self):
        set_limit("q", concurrency=2)
        ids, observer = make_jobs(40), Observer()
        all_work(observer, len(ids))
        assert observer.most[None] <= 2
        assert sorted(observer.ran) == ids

    def test_that_give_jobs_back_pass_no_limit(self):
        ids, observer, given = add(12, made(concurrency_limit=2)), Observer(), Counter()

        def end(lease):
            given[lease.job_id] += 1
            (ack if given[lease.job_id] > 2 else release)(lease)

        all_work(observer, 3 * len(ids), end)
        assert observer.most[None] <= 2
        assert Counter(observer.ran) == Counter(dict.fromkeys(ids, 3))


def _key(lease):
    return lease.payload["args"][0]


def test_claims_behind_one_barrier_take_exactly_the_slots_that_there_are():
    for _ in range(ROUNDS):
        add(10, made(concurrency_limit=3))
        found = all_at_once([lambda n=n: claim("q", 2, worker=f"w{n}") for n in range(CLAIMERS)])
        leases = [lease for part in found for lease in part]
        assert len(leases) <= 3
        leases += claim("q", 10, worker="w")
        assert len(leases) == 3, "no slot is lost"
        cancel_the_rest(leases)


def cancel_the_rest(leases):
    assert ack_many(leases) == []
    for job_id in Job.objects.filter(status=Job.Status.READY).values_list("pk", flat=True):
        cancel(job_id)


def test_claims_behind_one_barrier_take_exactly_the_tokens_that_there_are():
    work = made(rate_limit="5/h", concurrency_key=jobs.by_argument)
    for n in range(ROUNDS):
        add(8, work, f"key {n}")
        found = all_at_once([lambda n=n: claim("q", 2, worker=f"w{n}") for n in range(CLAIMERS)])
        assert sum(map(len, found)) <= 1
        assert sum(map(len, found)) + len(taken()) == 1, "a slow rate has a bucket of one"


@finding("F1")
@needs_row_locks
def test_a_claim_draws_no_token_while_its_bucket_is_locked_and_dates_the_next_one_at_its_own_time():
    # Else the starts of those that come after would stand closer together than the rate allows.
    add(2, made(rate_limit="20/s"))
    taken(1)
    bucket = Gate.objects.filter(used_until__isnull=False)
    with holding(lambda: bucket.select_for_update().get()):
        other = Actor(taken, 1)
        assert not other.is_blocked()
        assert other.result() == []
        released_at = now()
    sweep()
    look_again()
    assert len(taken(1)) == 1
    assert bucket.get().used_until >= released_at + timedelta(seconds=1 / 20)


@pytest.mark.parametrize(
    "whole_queue", [pytest.param(True, marks=finding("F8"), id="of a queue"), pytest.param(False, id="of a task")]
)
def test_a_token_is_drawn_when_the_jobs_start_and_not_when_their_claim_began(monkeypatch, whole_queue):
    """A claim may be slow after it has read the bucket."""
    if whole_queue:
        set_limit("q", rate="20/s")
    add(2, made() if whole_queue else made(rate_limit="20/s"))
    read = []

    def slow(function):
        def after_a_while(*args, **kwargs):
            begun = now()
            wait_until(lambda: now() - begun > timedelta(seconds=0.1))
            read.append(now())
            return function(*args, **kwargs)

        return after_a_while

    if whole_queue:
        monkeypatch.setattr(select_then_update, "stamp", slow(select_then_update.stamp))
    else:
        monkeypatch.setattr(admit, "take_slots", slow(admit.take_slots))
    assert len(taken(1)) == 1
    assert Gate.objects.get(used_until__isnull=False).used_until >= read[-1] + timedelta(seconds=1 / 20)


def test_starts_never_pass_bucket_and_rate_while_workers_race_for_tokens():
    add(200, made(rate_limit="20/s"))
    begun, found, lasted, lock = now(), [], [], threading.Lock()

    def starts(number):
        for _ in range(10):
            called = time.monotonic()
            leases = claim("q", 5, worker=f"w{number}")
            with lock:
                found.extend(leases)
                lasted.append(time.monotonic() - called)

    assert all_at_once([lambda n=n: starts(n) for n in range(CLAIMERS)]) == [None] * CLAIMERS
    times = sorted(lease.locked_at for lease in found)
    assert len(times) <= 20 + 20 * (now() - begun).total_seconds()
    for first in range(len(times)):
        for last in range(first, len(times)):
            seconds = (times[last] - times[first]).total_seconds()
            # A claim draws its tokens before it writes when it started, both within its call.
            assert last - first + 1 <= 20 + 20 * (seconds + max(lasted))


@pytest.fixture
def stopped_claim(monkeypatch):
    """Starts a claim of worker "slow" that stops between its slots and its commit; then an event, and how it fails."""
    reached, go_on, stamp = threading.Event(), threading.Event(), select_then_update.stamp
    fails = []

    def slow(leases, token, request):
        if request.worker == "slow" and leases:
            reached.set()
            assert go_on.wait(patient())
            if fails:
                raise fails[0]
        return stamp(leases, token, request)

    monkeypatch.setattr(select_then_update, "stamp", slow)

    def start():
        actor = Actor(claim, "q", 10, worker="slow")
        assert reached.wait(patient())
        return actor

    yield start, go_on, fails
    go_on.set()


@needs_row_locks
def test_a_slot_that_another_claim_takes_just_now_is_taken(stopped_claim):
    start, go_on, _ = stopped_claim
    work = made(concurrency_limit=1)
    (first,) = add(1, work)
    slow = start()
    (second,) = add(1, work)
    other = Actor(claim, "q", 10, worker="fast")
    other.is_blocked()
    go_on.set()
    assert [lease.job_id for lease in slow.result()] == [first]
    assert other.result() == []
    assert taken() == []
    assert waiting() == [second]


@needs_row_locks
def test_a_slot_of_a_claim_that_is_rolled_back_is_free(stopped_claim):
    start, go_on, fails = stopped_claim
    ids = add(2, made(concurrency_limit=1))
    fails.append(RuntimeError("the process dies here"))
    slow = start()
    other = Actor(claim, "q", 10, worker="fast")
    other.is_blocked()
    go_on.set()
    assert isinstance(slow.outcome(), RuntimeError)
    assert {lease.job_id for lease in other.result()} | set(taken()) <= set(ids)
    assert Job.objects.filter(status=Job.Status.PROCESSING).count() == 1


@needs_row_locks
def test_a_claim_of_another_key_does_not_wait_for_one_that_has_stopped(stopped_claim):
    start, go_on, _ = stopped_claim
    work = made(concurrency_limit=1, concurrency_key=jobs.by_argument)
    first = int(work.enqueue("a").id)
    slow = start()
    second = int(work.enqueue("b").id)
    (lease,) = Actor(claim, "q", 10, worker="fast").result()
    assert lease.job_id == second
    go_on.set()
    assert [lease.job_id for lease in slow.result()] == [first]


@needs_row_locks
def test_an_opener_that_comes_late_does_not_hide_a_job_that_was_put_behind_its_gate_again(monkeypatch):
    reached, go_on = threading.Event(), threading.Event()

    def slow(ids, using):
        reached.set()
        assert go_on.wait(patient())
        return delete_waits(ids, using)

    first, second = add(2, made(concurrency_limit=1))
    (lease,) = claim("q", 10, worker="w")
    assert (lease.job_id, waiting()) == (first, [second])
    # One opener was faster; the other one had read that the job waits.
    assert open_jobs([second], "default") == {second}
    monkeypatch.setattr("jobqueue.gates.waiting.delete_waits", slow)
    late = Actor(open_jobs, [second], "default")
    assert reached.wait(patient())
    assert claim("q", 10, worker="w") == []
    go_on.set()
    assert late.result() == set()
    ack(lease)
    assert taken() == [second]


@pytest.mark.parametrize("end", [ack, release, lambda lease: fail(lease, error="x", delay_seconds=3600)])
def test_a_slot_that_is_freed_while_another_claim_finds_it_taken_leaves_nobody_waiting(end):
    for _ in range(ROUNDS):
        add(3, made(concurrency_limit=1))
        (lease,) = claim("q", 1, worker="w")
        _, found = all_at_once([lambda lease=lease: end(lease), lambda: claim("q", 10, worker="w2")])
        found += claim("q", 10, worker="w2")
        assert len(found) == 1, "no sweep was needed"
        cancel_the_rest(found)


class TestALeaseThatRunsOut:
    def test_lets_one_in_and_no_second_one_whoever_comes_first(self):
        for _ in range(ROUNDS):
            add(3, made(concurrency_limit=1))
            (lease,) = claim("q", 1, worker="lost")
            expire(lease)
            *_, one, two = all_at_once(
                [reap, reap, lambda: claim("q", 5, worker="a"), lambda: claim("q", 5, worker="b")]
            )
            found = [*one, *two, *claim("q", 5, worker="c")]
            assert len(found) == 1
            assert Job.objects.filter(status=Job.Status.PROCESSING).count() == 1
            cancel_the_rest(found)

    def test_and_a_heartbeat_that_comes_late_never_both_have_the_slot(self):
        for _ in range(ROUNDS):
            add(3, made(concurrency_limit=1))
            (lease,) = claim("q", 1, worker="late")
            expire(lease)
            beat, _, _ = all_at_once(
                [
                    lambda lease=lease: heartbeat(lease, lease_seconds=600),
                    reap,
                    lambda: claim("q", 5, worker="other"),
                ]
            )
            # The reaper leaves a row that the heartbeat has locked for its next look.
            reap()
            claim("q", 5, worker="other")
            holders = list(Job.objects.filter(status=Job.Status.PROCESSING).values_list("locked_by", flat=True))
            assert len(holders) == 1
            assert isinstance(beat, LeaseLost) == (holders == ["other"])
            Job.objects.all().delete()

    def test_whose_holder_acks_late_frees_no_slot_of_another(self):
        for _ in range(ROUNDS):
            add(4, made(concurrency_limit=1))
            (lease,) = claim("q", 1, worker="late")
            expire(lease)
            reap()
            _, found = all_at_once([lambda lease=lease: ack_many([lease]), lambda: claim("q", 5, worker="other")])
            found += claim("q", 5, worker="other")
            assert len(found) == 1
            Job.objects.all().delete()


class TestALimitThatChanges:
    def test_lower_lets_nobody_in_while_enough_run(self):
        work = made(concurrency_limit=4)
        add(20, work)
        leases = claim("q", 10, worker="w")
        assert len(leases) == 4
        set_limit("q", task=work, concurrency=2)
        for lease in leases[:2]:
            all_at_once([lambda lease=lease: ack(lease), *[lambda: claim("q", 5, worker="w2")] * 3])
            assert running() == 4 - leases.index(lease) - 1
        _, *found = all_at_once([lambda: ack(leases[2]), *[lambda: claim("q", 5, worker="w2")] * 3])
        assert sum(map(len, found)) + len(claim("q", 5, worker="w2")) == 1
        assert running() == 2

    def test_to_and_fro_while_workers_run_passes_the_highest_at_no_time(self):
        work, observer = made(concurrency_limit=3), Observer()
        ids = add(60, work)
        over = threading.Event()

        def change():
            most = 0
            while not over.is_set():
                most = most % 3 + 1
                set_limit("q", task=work, concurrency=most)

        changing = Actor(change)
        try:
            all_work(observer, len(ids) - 10)
        finally:
            over.set()
            changing.result()
        assert observer.most[None] <= 3


def running():
    return Job.objects.filter(status=Job.Status.PROCESSING).count()


@needs_row_locks
def test_a_pause_that_is_not_committed_stops_nobody():
    first, second = make_jobs(2)
    with holding(lambda: pause("q", reason="r")):
        forget_rules()
        (lease,) = Actor(claim, "q", 1, worker="w").result()
        assert lease.job_id == first
    forget_rules()
    assert taken() == []
    resume("q")
    assert taken() == [second]


def test_one_of_many_claims_is_the_probe_of_a_breaker():
    work = task(queue_name="q", dependency="stripe")(jobs.work)
    for _ in range(ROUNDS):
        breaker.failed("stripe", [[Run(n, 1, 1.0, 0.0)] for n in range(5)], using="default")
        BreakerState.objects.update(probe_at=now())
        add(6, work)
        forget_rules()
        found = all_at_once([lambda n=n: claim("q", 3, worker=f"w{n}") for n in range(CLAIMERS)])
        assert sum(map(len, found)) == 1
        for rows in (Job, GateWait, BreakerState):
            rows.objects.all().delete()


def test_threads_of_one_process_add_no_more_than_max_ready(settings):
    settings.JOBQUEUE = {"QUEUES": {"q": {"MAX_READY": 10}}}

    def add_some():
        added = 0
        for n in range(5):
            try:
                enqueue("q", n)
                added += 1
            except QueueFull:
                pass
        return added

    assert sum(all_at_once([add_some] * CLAIMERS)) == 10
    assert Job.objects.count() == 10
