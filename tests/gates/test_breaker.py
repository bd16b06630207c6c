"""The circuit breaker of a dependency: when it opens and closes, what waits for it, and who pays for an outage."""

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest

from jobqueue.conf.known_tasks import spec_at
from jobqueue.exceptions import DatabaseBusy
from jobqueue.failures.dependencies import DependencySettings
from jobqueue.flow import breaker
from jobqueue.gates import breaker as machine
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.models import BreakerState, Job
from jobqueue.signals import breaker_changed
from jobqueue.testing import travel
from jobqueue.transitions import reap
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.child.sifting import Breakers
from jobqueue.worker.run.pool import UnrecordedFailures
from jobqueue.worker.shared.scoreboard import ProcessSlot
from tests.factories import expire, job, make_due, make_job, run_lease, set_columns, state
from tests.gates import jobs
from tests.gates.helpers import add, look_again, open_in_time, sweep, take, taken, waiting
from tests.marks import committed

pytestmark = committed

PROBE_SECONDS = 1.0


@pytest.fixture
def stripe(limited, settings):
    """A task that calls a service, whose breaker opens after three failures."""
    settings.JOBQUEUE = {"DEPENDENCIES": {"stripe": {"FAILURES": 3, "WITHIN": "10s", "PROBE": PROBE_SECONDS}}}
    jobs.ERRORS.clear()
    yield limited(jobs.calls, dependency="stripe", max_attempts=20)
    jobs.ERRORS.clear()


@pytest.fixture
def told():
    """The states that breaker_changed has told."""
    found = []

    def note(state, dependency, **_):
        found.append((dependency, state))

    breaker_changed.connect(note)
    yield found
    breaker_changed.disconnect(note)


def child():
    """What a worker's process does with breakers."""
    pool = SimpleNamespace(rules=None, unrecorded=UnrecordedFailures())
    return Breakers(ProcessSlot(), pool, "default", nullcontext(), nullcontext)


def run(leases, *errors, breakers=None):
    """Run the jobs of these leases; the first ones raise `errors`. Their ends are written."""
    jobs.ERRORS.extend(errors)
    outcomes = [run_lease(lease) for lease in leases]
    (breakers or child()).ended(outcomes)
    counts = SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)
    assert settle(outcomes, counts) == []


def claimed(limit=100):
    return list(take(limit).values())


def outage(calls):
    """What so many calls of the service raise."""
    return [ConnectionRefusedError("nobody listens") for _ in range(calls)]


def break_it(stripe):
    """Let three calls fail, so that the breaker is open; their ids."""
    ids = add(3, stripe)
    run(claimed(3), *outage(3))
    assert breaker_state() == "open"
    return ids


def breaker_state():
    found = BreakerState.objects.filter(pk="stripe").first()
    return found.state if found else "closed"


def attempts(ids):
    return [job(job_id).attempts for job_id in ids]


def test_it_opens_after_so_many_failures_and_each_of_them_used_an_attempt(stripe, told):
    ids = add(3, stripe)
    run(claimed(2), *outage(2))
    assert breaker_state() == "closed"
    run(claimed(1), *outage(1))
    assert breaker_state() == "open"
    assert attempts(ids) == [1, 1, 1]
    assert told == [("stripe", "open")]


def test_while_it_is_open_no_job_of_the_dependency_starts_and_none_is_claimed(stripe):
    break_it(stripe)
    ids = add(5, stripe)
    for _ in range(4):
        assert taken() == []
    assert waiting() == ids
    assert set(Job.objects.filter(pk__in=ids).values_list("attempts", "fence")) == {(0, 0)}
    assert job(ids[0]).wait_reason == "breaker stripe"


def test_jobs_without_the_dependency_go_on(stripe, limited):
    break_it(stripe)
    add(5, stripe)
    (free,) = add(1, limited())
    (other,) = add(1, limited(jobs.other, dependency="another"))
    raw = make_job("q")
    assert taken(3) == [free, other, raw]


def test_jobs_of_other_queues_wait_too(stripe):
    break_it(stripe)
    add(1, stripe.using(queue_name="elsewhere"))
    assert taken(queue="elsewhere") == []


def test_a_success_between_failures_keeps_it_closed(stripe):
    add(5, stripe)
    breakers = child()
    run(claimed(2), *outage(2), breakers=breakers)
    run(claimed(1), breakers=breakers)
    run(claimed(2), *outage(2), breakers=breakers)
    assert breaker_state() == "closed"


def test_a_success_that_ended_before_the_failures_and_is_recorded_late_changes_nothing(stripe):
    """Each process records its own runs, a moment after they have ended."""
    add(4, stripe)
    early = [run_lease(lease) for lease in claimed(1)]
    run(claimed(2), *outage(2))
    child().ended(early)
    run(claimed(1), *outage(1))
    assert breaker_state() == "open"


def test_the_breakers_tell_the_pool_that_they_know_of_a_failure_also_if_they_could_not_record_it(stripe, monkeypatch):
    add(2, stripe)
    breakers = child()
    unrecorded = breakers._pool.unrecorded
    jobs.ERRORS.extend(outage(2))
    first, second = ([run_lease(lease)] for lease in claimed(2))
    unrecorded.add(first)
    unrecorded.add(second)
    breakers.ended(first)
    assert unrecorded._failures == {"stripe": 1}

    def busy(*_, **__):
        raise DatabaseBusy("six times")

    monkeypatch.setattr("jobqueue.gates.breaker.failed", busy)
    breakers.ended(second)
    assert not unrecorded._failures


def test_failures_further_apart_than_its_window_keep_it_closed(stripe):
    add(4, stripe)
    run(claimed(2), *outage(2))
    with travel(11):
        forget_rules()
        run(claimed(2), *outage(2))
        assert breaker_state() == "closed"


@pytest.mark.parametrize("error", [AttributeError("no"), ValueError("bad"), KeyError("k"), MemoryError()])
def test_failures_of_the_code_do_not_open_it(stripe, error):
    ids = add(5, stripe)
    run(claimed(), *[error] * 5)
    assert breaker_state() == "closed"
    assert attempts(ids) == [1] * 5


def test_failures_of_runs_that_began_before_it_was_closed_do_not_open_it_again(stripe):
    breaker("stripe").open("maintenance")
    breaker("stripe").close()
    machine.failed("stripe", [[Run(n, 1, 5.0, 0.0)] for n in range(3)], using="default")
    assert breaker_state() == "closed"


def test_a_batch_that_fails_in_one_call_counts_once(stripe):
    add(3, stripe)
    (down,) = outage(1)
    outcomes = [run_lease(lease) for lease in claimed() if not jobs.ERRORS.append(down)]
    assert len({id(outcome.error) for outcome in outcomes}) == 1, "one exception for all, as of a batch"
    child().ended(outcomes)
    assert breaker_state() == "closed"


class TestAProbe:
    def test_is_one_job_and_comes_after_the_time_of_the_settings(self, stripe):
        break_it(stripe)
        first, *rest = add(4, stripe)
        assert taken() == []
        assert look_again() == 0
        with travel(1.05):
            forget_rules()
            assert open_in_time() == 1
            assert taken() == [first]
            assert breaker_state() == "half-open"
            assert taken() == []
        assert waiting() == rest

    def test_that_succeeds_closes_it_and_all_that_waits_starts(self, stripe, told):
        ids = break_it(stripe)
        first, *rest = add(4, stripe)
        assert taken() == []
        with travel(1.05):
            forget_rules()
            open_in_time()
            (probe,) = claimed()
            assert probe.job_id == first
            run([probe])
            assert breaker_state() == "closed"
            open_in_time()
            assert taken() == rest
        assert told == [("stripe", "open"), ("stripe", "closed")]
        assert attempts(ids) == [1, 1, 1]

    def test_that_fails_uses_no_attempt_and_opens_it_again(self, stripe):
        break_it(stripe)
        (first, _) = add(2, stripe)
        taken()
        with travel(0) as clock:
            for _ in range(3):
                clock.forward(1.05)
                forget_rules()
                open_in_time()
                leases = claimed()
                assert len(leases) == 1
                run(leases, *outage(1))
                assert breaker_state() == "open"
                assert job(leases[0].job_id).attempts == 0
                assert state(leases[0].job_id) == "READY"
        assert set(Job.objects.filter(pk__gte=first).values_list("attempts", flat=True)) == {0}

    def test_of_a_job_that_was_not_behind_the_gate_is_possible(self, stripe):
        break_it(stripe)
        with travel(1.05):
            forget_rules()
            (first, _) = add(2, stripe)
            assert taken() == [first]

    def test_that_dies_is_followed_by_the_next(self, stripe):
        break_it(stripe)
        add(3, stripe)
        taken()
        with travel(1.05) as clock:
            forget_rules()
            open_in_time()
            (probe,) = claimed()
            expire(probe)
            reap()
            clock.forward(2)
            forget_rules()
            sweep()
            open_in_time()
            (second,) = claimed()
            assert breaker_state() == "half-open"
            run([second])
            assert breaker_state() == "closed"

    def test_that_fails_for_another_reason_does_not_close_it(self, stripe):
        break_it(stripe)
        add(3, stripe)
        taken()
        with travel(1.05) as clock:
            forget_rules()
            open_in_time()
            (probe,) = claimed()
            run([probe], AttributeError("our own mistake"))
            assert job(probe.job_id).attempts == 1
            assert breaker_state() != "closed"
            clock.forward(2)
            forget_rules()
            open_in_time()
            (second,) = claimed()
            run([second])
            assert breaker_state() == "closed"

    def test_closes_it_by_its_own_success_and_not_by_that_of_another_run(self, stripe):
        break_it(stripe)
        BreakerState.objects.update(state="half-open", probe_job=7, probe_fence=2)
        machine.succeeded("stripe", [Run(8, 2, 1.0, 0.0), Run(7, 1, 1.0, 0.0)], using="default")
        assert breaker_state() == "half-open"
        machine.succeeded("stripe", [Run(7, 2, 1.0, 0.0)], using="default")
        assert breaker_state() == "closed"

    def test_may_be_a_job_with_a_limit(self, stripe, limited):
        break_it(stripe)
        bound = limited(jobs.calls, dependency="stripe", concurrency_limit=1)
        ids = add(2, bound)
        assert taken() == []
        with travel(1.05):
            forget_rules()
            open_in_time()
            (probe,) = claimed()
            assert probe.job_id == ids[0]
            run([probe])
            open_in_time()
            assert taken() == ids[1:]


class TestWhoPaysForAnOutage:
    def test_runs_that_began_after_it_opened_get_their_attempt_back(self, stripe):
        ids = add(6, stripe)
        leases = claimed()
        run(leases[:3], *outage(3))
        run(leases[3:], *outage(3))
        assert attempts(ids[:3]) == [1, 1, 1]
        assert attempts(ids[3:]) == [0, 0, 0]
        assert {state(job_id) for job_id in ids} == {"READY"}

    def test_runs_that_were_running_when_it_opened_use_theirs(self, stripe):
        spent = Run(1, 1, began_seconds=5.0, ended_seconds=0.0)
        first = [[Run(n, 1, began_seconds=4.0, ended_seconds=2.0)] for n in (2, 3, 4)]
        assert machine.failed("stripe", first, using="default") == set()
        late = Run(5, 1, began_seconds=1.0, ended_seconds=0.5)
        assert set(machine.failed("stripe", [[spent], [late]], using="default")) == {late.key}

    def test_a_wait_for_a_lock_does_not_move_the_instant_at_which_it_opened(self, stripe, monkeypatch):
        clock = iter([100.0, 107.0])
        with monkeypatch.context() as slow:
            slow.setattr(machine, "time", SimpleNamespace(monotonic=lambda: next(clock, 107.0)))
            machine.failed(
                "stripe", [[Run(n, 1, began_seconds=1.0, ended_seconds=0.0)] for n in (1, 2, 3)], using="default"
            )
        # It opened seven seconds ago, when the calls failed.
        later = Run(4, 1, began_seconds=5.0, ended_seconds=0.0)
        assert set(machine.failed("stripe", [[later]], using="default")) == {later.key}

    def test_runs_that_began_after_it_opened_do_not_pay_for_a_failed_probe_either(self, stripe):
        break_it(stripe)
        opened = BreakerState.objects.get().since
        BreakerState.objects.update(state="half-open", probe_job=7, probe_fence=1)
        assert machine.failed("stripe", [[Run(7, 1, 0.0, 0.0)]], using="default") == {(7, 1)}
        assert BreakerState.objects.get().since == opened
        # It began after the first failures, and goes on while the probe fails.
        BreakerState.objects.update(since=opened - timedelta(seconds=20))
        late = Run(8, 1, began_seconds=10.0, ended_seconds=0.0)
        assert set(machine.failed("stripe", [[late]], using="default")) == {late.key}

    def test_a_success_that_was_claimed_before_it_opened_does_not_close_it(self, stripe):
        add(4, stripe)
        leases = claimed()
        run(leases[:3], *outage(3))
        run(leases[3:])
        assert breaker_state() == "open"

    def test_a_job_whose_attempt_was_given_back_waits_for_the_breaker(self, stripe):
        ids = add(4, stripe)
        leases = claimed()
        run(leases[:3], *outage(3))
        run(leases[3:], *outage(1))
        assert taken() == []
        found = job(ids[3])
        assert (found.attempts, found.wait_reason) == (0, "breaker stripe")

    def test_leases_that_were_claimed_ahead_are_sifted_out(self, stripe):
        add(5, stripe)
        leases = claimed()
        breakers = child()
        run(leases[:3], *outage(3), breakers=breakers)
        kept, shut, _ = breakers.sift(leases[3:])
        assert (kept, shut) == ([], leases[3:])


def test_a_retry_waits_for_the_breaker_too(stripe):
    ids = break_it(stripe)
    for job_id in ids:
        make_due(job_id)
    assert taken() == []
    assert waiting() == ids


def test_plain_sql_may_name_the_dependency_of_a_job(stripe, plain):
    (by_sql,) = add(1, plain)
    set_columns(by_sql, dependency="stripe")
    break_it(stripe.using(priority=1))
    assert taken() == []
    assert waiting() == [by_sql]


def test_a_probe_whose_job_is_gone_is_followed_by_the_next(stripe):
    BreakerState.objects.create(dependency="stripe", state="half-open", probe_job=987654, probe_fence=3)
    (first, _second) = add(2, stripe)
    assert taken() == [first]


def test_the_defaults_of_a_dependency_are_those_of_the_contract():
    assert DependencySettings() == DependencySettings(failures=5, within=10.0, probe=1.0, retry_share=0.2)


def test_failures_that_were_counted_with_a_higher_number_count_with_a_lower_one(settings):
    """As in a deploy that lowers FAILURES, while processes with both run."""
    settings.JOBQUEUE = {"DEPENDENCIES": {"stripe": {"FAILURES": 3}}}
    for number in range(2):
        machine.failed("stripe", [[Run(number, 1, 0.1, 0.0)]], using="default")
    settings.JOBQUEUE = {"DEPENDENCIES": {"stripe": {"FAILURES": 2}}}
    machine.failed("stripe", [[Run(9, 1, 0.1, 0.0)]], using="default")
    assert breaker("stripe").state == "open"


def test_using_another_dependency_does_not_change_that_of_the_task(limited):
    one = limited(dependency="stripe")
    one.using(dependency="other").enqueue()
    assert spec_at(one.module_path).dependency == "stripe"
