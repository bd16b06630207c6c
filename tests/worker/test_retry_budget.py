"""Retries of a dependency that is down are held at their share of the runs; nested retries are multiplied."""

import logging
import os
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from jobqueue import task
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.maintenance import worker_rows
from jobqueue.models import Job, Worker
from jobqueue.signals import RunOutcome
from jobqueue.transitions import claim, retry
from jobqueue.worker.child.outcomes import settle
from jobqueue.worker.child.retry_budget import LOOK_HIGH_SECONDS, WINDOW_SECONDS, RetryBudget, RetryLimit
from jobqueue.worker.monitor.housekeeping import Housekeeping
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.run.attempt import Ending
from jobqueue.worker.shared.counters import RetryCounts, RetryMemory, retry_totals
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.clocks import Clock
from tests.factories import job, make_due, make_job, run_lease, seconds_from_now
from tests.marks import committed, finding
from tests.patience import patient
from tests.worker.retry_service import DOWN, Service, lease, ran, workers


@pytest.mark.parametrize("processes", [1, 3])
def test_while_a_dependency_is_down_retries_are_held_at_their_share_of_all_runs(processes):
    budgets, _, clock = workers(processes)
    service = Service(budgets, clock, per_second=20)
    service.run(120, down=True)
    firsts, retries = service.run(300, down=True)
    assert firsts == pytest.approx(6000, abs=2)
    assert 0.15 < retries / (firsts + retries) < 0.205


def test_without_the_budget_the_same_retries_are_most_of_the_runs(monkeypatch):
    monkeypatch.setattr(RetryLimit, "look", lambda *_: False)
    budgets, _, clock = workers()
    service = Service(budgets, clock, per_second=20)
    service.run(120, down=True)
    firsts, retries = service.run(30, down=True)
    assert retries > 3 * firsts


@override_settings(JOBQUEUE={"DEPENDENCIES": {"stripe": {"RETRY_SHARE": 0.5}}})
def test_the_share_is_a_setting_of_the_dependency():
    budgets, _, clock = workers()
    service = Service(budgets, clock, per_second=20)
    service.run(120, down=True)
    firsts, retries = service.run(300, down=True)
    assert 0.45 < retries / (firsts + retries) < 0.505


def test_a_quiet_queue_may_retry_all_of_its_jobs():
    (budget,), _, clock = workers()
    for _ in range(30):
        outcome = ran(DOWN)
        budget.ended([outcome])
        assert outcome.delay_seconds == 5.0
        clock.go(1.5)


def test_workers_on_other_hosts_need_not_know_each_other_to_hold_the_share():
    clock = Clock()
    budgets = [workers(1, clock)[0][0] for _ in range(2)]
    service = Service(budgets, clock, per_second=20)
    service.run(120, down=True)
    firsts, retries = service.run(200, down=True)
    assert 0.15 < retries / (firsts + retries) < 0.205


def test_without_first_attempts_retries_go_on_at_the_floor():
    budgets, _, clock = workers(2)
    service = Service(budgets, clock)
    service.run(60, down=True)
    service.run(200, down=True, first=False)
    _, retries = service.run(400, down=True, first=False)
    assert 0.8 < retries / 400 < 1.1


def test_a_service_that_fails_a_third_of_its_calls_gets_no_more_retries_than_the_share():
    budgets, _, clock = workers(2)
    service = Service(budgets, clock)
    service.run(120, down=0.34)
    firsts, retries = service.run(300, down=0.34)
    assert retries / (firsts + retries) < 0.21


@pytest.mark.parametrize(("jobs", "down"), [(1000, 300), (3000, 120)])
def test_a_burst_is_held_at_the_floor_and_runs_within_minutes_after_the_service_is_back(jobs, down):
    budgets, _, clock = workers(4)
    service = Service(budgets, clock)
    service.burst(jobs)
    service.run(30, down=True, first=False)
    _, retries = service.run(down - 30, down=True, first=False)
    assert retries / (down - 30) < 1.3
    # At most 5 minutes without a turn, and the time until enough runs have succeeded.
    assert service.until_done() < LOOK_HIGH_SECONDS + WINDOW_SECONDS + 10


def test_jobs_of_a_short_outage_do_not_wait_for_longer_than_it_and_a_minute():
    budgets, _, clock = workers()
    service = Service(budgets, clock)
    service.run(30, down=True)
    assert service.until_done() < 60 + WINDOW_SECONDS + 10


def test_a_retry_that_waits_is_looked_at_every_few_minutes_only():
    budgets, _, clock = workers(4)
    service = Service(budgets, clock)
    service.burst(1000)
    service.run(600, down=True, first=False)
    looked = service.looks
    service.run(300, down=True, first=False)
    assert service.looks - looked < 2.2 * 1000


def test_when_the_dependency_is_back_new_retries_wait_no_longer_and_the_held_ones_go_through(caplog):
    budgets, _, clock = workers()
    service = Service(budgets, clock)
    with caplog.at_level(logging.INFO, logger="jobqueue.worker"):
        service.run(600, down=True)
        assert len(service.waiting) > 10_000
        service.run(LOOK_HIGH_SECONDS + WINDOW_SECONDS, down=False)
    # The back-off of those that have failed seven times may be longer than that.
    longest = {attempt: 1.2 * 5 * 2 ** (attempt - 2) for _, _, attempt in service.waiting}
    assert [one for one in service.waiting if longest[one[2]] <= LOOK_HIGH_SECONDS + WINDOW_SECONDS] == []
    outcome = ran(DOWN)
    budgets[0].ended([outcome])
    assert outcome.delay_seconds == 5.0
    assert [record.getMessage() for record in caplog.records] == [
        "w: more than 20 % of the runs that need stripe fail because of it: their retries wait for their turn, first "
        "attempts go on",
        "w: stripe answers again: its retries wait for their back-off only, those that waited begin within 5m 0s",
    ]


def test_first_attempts_and_retries_of_other_services_are_not_put_back():
    (budget,), _, _ = workers()
    budget.ended([ran(DOWN) for _ in range(100)])
    free = [lease(dependency="stripe"), lease(2, dependency="github"), lease(2)]
    held = [lease(2, dependency="stripe") for _ in range(3)]
    found, _, waiting = budget.sift([*held, *free])
    assert found == [held[0], *free], "one retry has the turn"
    assert [one for group in waiting.values() for one in group] == held[1:]
    assert {reason for _, reason in waiting} == {"stripe fails: its retries wait for their turn"}


def test_a_retry_is_not_put_back_beyond_its_expiry():
    (budget,), _, _ = workers()
    budget.ended([ran(DOWN) for _ in range(100)])
    at = datetime.now(UTC)
    expiring = [lease(2, dependency="stripe", locked_at=at, expires_at=at + timedelta(seconds=s)) for s in (4, 12, 900)]
    found, _, waiting = budget.sift([lease(2, dependency="stripe"), *expiring])
    assert found[1:] == expiring[:1], "it is too late to wait"
    seconds = {one.expires_at: wait for (wait, _), group in waiting.items() for one in group}
    assert seconds[expiring[1].expires_at] == 7
    assert seconds[expiring[2].expires_at] > 7


def test_a_job_that_fails_its_own_lease_is_no_success_of_the_dependency():
    (budget,), counts, clock = workers()
    budget.ended([ran(DOWN) for _ in range(100)])
    clock.go(WINDOW_SECONDS + 1)
    own = ran(None, 2)
    own.ending, own.settled = Ending.FINISHED, RunOutcome.RETRY
    budget.ended([own] * 20)
    waiting = [lease(2, dependency="stripe") for _ in range(20)]
    assert len(budget.sift(waiting).kept) < 20
    own.settled = RunOutcome.OK
    budget.ended([own] * 20)
    assert len(budget.sift(waiting).kept) == 20
    assert retry_totals(counts)[0].retries == 40


def test_any_number_of_names_takes_bounded_memory():
    (budget,), (counts,), clock = workers()
    budget.ended([ran(DOWN, dependency="stripe") for _ in range(100)])
    for number in range(2000):
        budget.ended([ran(dependency=f"dependency-{number}", task=f"app.task_{number}")])
        clock.go(1)
    assert len(budget._limits) <= 100
    assert len(counts._runs) <= 1000
    assert budget.sift([lease(2, dependency="stripe") for _ in range(9)]).waiting, "the one that fails is kept"


def test_more_dependencies_than_there_is_room_for_are_limited_in_each_process_alone():
    budgets, counts, _ = workers(2)
    for number in range(40):
        budgets[0].ended([ran(dependency=f"dependency-{number}")])
    budgets[0].ended([ran(DOWN, dependency="late") for _ in range(100)])
    assert budgets[0].sift([lease(2, dependency="late") for _ in range(9)]).waiting
    assert counts[0].known_rates("dependency-31").failure_rate == 0


@pytest.mark.parametrize(
    "outcome",
    [
        lambda: ran(ValueError("boom")),
        lambda: ran(DOWN, dependency=None),
        lambda: ran(DOWN, 25),
    ],
    ids=["another cause", "no dependency", "the last attempt"],
)
def test_only_retries_after_failures_of_the_dependency_are_held(outcome):
    (budget,), _, _ = workers()
    budget.ended([ran(DOWN) for _ in range(500)])
    one = outcome()
    budget.ended([one])
    assert one.delay_seconds == 5.0


def test_other_dependencies_are_not_held():
    (budget,), _, _ = workers()
    budget.ended([ran(DOWN) for _ in range(500)])
    one = ran(DOWN, dependency="github")
    budget.ended([one])
    assert one.delay_seconds == 5.0


def test_a_run_of_a_task_that_never_failed_and_has_no_dependency_is_not_counted():
    (budget,), counts, _ = workers()
    budget.ended([ran(dependency=None)])
    assert retry_totals(counts) == []


def test_runs_are_summed_over_processes_and_continue_after_a_process():
    budgets, counts, clock = workers(2)
    for budget in (*budgets, RetryBudget(counts[0], counts, "w", clock=clock)):
        budget.ended([ran(DOWN), ran(None, 2)])
    (total,) = retry_totals(counts)
    assert (total.dependency, total.task, total.first_runs, total.retries) == ("stripe", "app.pay", 3, 3)
    assert total.amplification == 2


def test_more_tasks_than_there_is_room_for_are_counted_together():
    (budget,), counts, _ = workers()
    for number in range(100):
        budget.ended([ran(DOWN, task=f"app.t{number}")])
    found = retry_totals(counts)
    assert len(found) == 64
    assert [total.first_runs for total in found if total.task == "other"] == [37]


def three_tries():
    """What urllib3 raises after three tries."""
    import urllib3

    retries = urllib3.Retry(total=2, backoff_factor=0)
    with urllib3.PoolManager() as pool:
        pool.request("GET", "http://127.0.0.1:1/", retries=retries, timeout=patient())


def raised(function):
    try:
        function()
    except Exception as error:
        return error


def test_a_job_that_tries_three_times_inside_three_attempts_is_reported_as_nine(caplog):
    (budget,), counts, _ = workers()
    for attempt in (1, 2, 3):
        budget.ended([ran(raised(three_tries), attempt, max_attempts=3)])
    (total,) = retry_totals(counts)
    assert (total.first_runs, total.retries, total.calls, total.amplification) == (1, 2, 9, 9)
    (record,) = [record for record in caplog.records if record.name == "jobqueue.worker"]
    assert record.getMessage() == (
        "w: retries are nested: one attempt of app.pay made 3 calls (urllib3), so its 3 attempts make up to 9. Let one "
        "layer retry: turn off the retries of the library, or set max_attempts=1"
    )


def test_metrics_show_the_amplification_of_a_task():
    scoreboard = Scoreboard(2, 1)
    for index, attempt in enumerate((1, 2, 2)):
        budget = RetryBudget(scoreboard.retries[index % 2], scoreboard.retries, "w")
        budget.ended([ran(raised(three_tries), attempt)])
    probe = Probe.__new__(Probe)
    probe._scoreboard = scoreboard
    status, text = probe._metrics()
    assert status == 200
    assert 'jobqueue_worker_retry_amplification{dependency="stripe",task="app.pay"} 9.0' in text
    assert 'jobqueue_worker_retry_calls_total{dependency="stripe",task="app.pay"} 9.0' in text


def test_deliveries_of_events_are_counted_from_the_first_repeated_one_on():
    counts = RetryCounts(RetryMemory())
    for topic, attempt in [("calm", 1), ("paid", 1), ("paid", 2), ("paid", 3), ("paid", 1)]:
        counts.delivered(topic, attempt)
    (total,) = retry_totals([counts])
    assert (total.task, total.first_runs, total.retries, total.calls) == ("outbox paid", 2, 2, 4)
    assert total.amplification == 2


def test_after_a_restart_the_retries_of_earlier_jobs_are_not_an_amplification():
    (budget,), counts, _ = workers()
    budget.ended([ran(DOWN, attempt) for attempt in range(2, 12)])
    assert retry_totals(counts)[0].amplification == 1


def test_only_one_process_of_a_worker_reports_nested_retries(caplog):
    budgets, _, _ = workers(3)
    for budget in budgets:
        budget.ended([ran(raised(three_tries))])
    assert sum("nested" in record.getMessage() for record in caplog.records) == 1


def monitor_options(**given):
    """Those of runworker that the duties of its monitor read."""
    same = {"database": "default", "probe_port": None, "reaper": False, "heartbeat_seconds": 5.0}
    return SimpleNamespace(**same | {"once": False, "drain": False} | given)


@committed
def test_the_row_of_a_worker_gets_the_counts_of_its_process_when_they_change():
    options = monitor_options()
    scoreboard = Scoreboard(1, 1)
    duties = Housekeeping(options, scoreboard, lambda: [(0, "w1")], lambda: None, None, nullcontext())
    worker_rows.register("w1", supervisor_pid=1, boot_id="b", queues="q", concurrency=1, using="default")
    duties.renew_workers()
    assert Worker.objects.get().retries is None
    RetryBudget(scoreboard.retries[0], scoreboard.retries, "w").ended([ran(DOWN), ran(None, 2)])
    duties.renew_workers()
    (shown,) = Worker.objects.get().retries
    assert (shown["task"], shown["dependency"], shown["amplification"]) == ("app.pay", "stripe", 2.0)
    with CaptureQueriesContext(connection) as captured:
        duties.renew_workers()
    assert not any("retries" in query["sql"] for query in captured)
    # The process is replaced again and again.
    for generation in range(3):
        duties._living = lambda name=f"w1.{generation}": [(0, name)]
        duties.renew_workers()
    assert len(duties._retries) == 1


@finding("K-C8")
@committed
def test_heartbeats_are_written_without_use_tz(settings):
    settings.USE_TZ = False
    duties = Housekeeping(monitor_options(), Scoreboard(1, 1), lambda: [(0, "w1")], lambda: None, None, nullcontext())
    worker_rows.register("w1", supervisor_pid=1, boot_id="b", queues="q", concurrency=1, using="default")
    Worker.objects.update(heartbeat_at=UtcNowPlus(-100))
    duties.renew_workers()
    assert Worker.objects.filter(heartbeat_at__gt=UtcNowPlus(-50)).exists()


@committed
def test_the_memory_of_a_child_is_written_when_its_row_is_there():
    scoreboard = Scoreboard(1, 1)
    scoreboard.slots[0].pid = os.getpid()
    duties = Housekeeping(monitor_options(), scoreboard, lambda: [(0, "w1")], lambda: None, None, nullcontext())
    duties.renew_workers()
    worker_rows.register("w1", supervisor_pid=1, boot_id="b", queues="q", concurrency=1, using="default")
    duties.renew_workers()
    assert Worker.objects.get().rss_bytes > 5 * 2**20


@pytest.fixture
def stripe(own_registry):
    ERRORS.clear()
    return task(queue_name="q", dependency="stripe")(charge)


ERRORS = []


def charge():
    if ERRORS:
        raise ERRORS.pop(0)


def settled(budget, *, worker="w"):
    (one,) = claim("q", worker=worker)
    outcome = run_lease(one)
    budget.ended([outcome])
    counts = SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)
    assert settle([outcome], counts) == []
    return one


@committed
def test_a_retry_over_the_budget_waits_keeps_its_attempts_and_runs_later(stripe):
    (budget,), counts, _ = workers()
    budget.ended([ran(DOWN) for _ in range(100)])
    ERRORS.append(DOWN)
    job_id = int(stripe.enqueue().id)
    assert job(job_id).dependency == "stripe"
    settled(budget)
    found = job(job_id)
    assert (found.status, found.attempts) == (Job.Status.READY, 1)
    assert seconds_from_now(found.run_at) > 15
    make_due(job_id)
    settled(budget)
    assert job(job_id).status == Job.Status.DONE
    assert retry_totals(counts)[-1].held >= 1


@committed
@pytest.mark.parametrize("delayed", [True, False])
def test_a_job_that_is_retried_by_hand_runs_at_once_and_its_own_retries_wait_again(stripe, delayed):
    (budget,), _, _ = workers()
    budget.ended([ran(DOWN) for _ in range(500)])
    ids = [int(stripe.using(max_attempts=25 if delayed else 1).enqueue().id) for _ in range(3)]
    ERRORS.extend([DOWN] * 6)
    for _ in ids:
        settled(budget)
    assert all(retry(job_id) for job_id in ids)
    leases = claim("q", 3, worker="w")
    assert budget.sift(leases) == (leases, (), {})
    assert leases[0].options["first_due"][1] == 1
    if delayed:
        budget.ended([outcome := run_lease(leases[0])])
        assert outcome.delay_seconds > 15
    again = [lease._replace(attempt=3) for lease in leases]
    assert len(budget.sift(again).kept) <= 1


@committed
def test_a_retry_is_not_held_beyond_the_time_that_its_policy_allows(own_registry):
    one = task(queue_name="q", dependency="stripe", retry_until_seconds=60)(charge)
    (budget,), _, _ = workers()
    budget.ended([ran(DOWN) for _ in range(1000)])
    ERRORS[:] = [DOWN]
    job_id = int(one.enqueue().id)
    settled(budget)
    assert 10 < seconds_from_now(job(job_id).run_at) < 60


@committed
@override_settings(JOBQUEUE={"DEPENDENCIES": {"stripe": {}}})
def test_plain_sql_may_name_the_dependency_of_a_job(own_registry):
    job_id = make_job("q", dependency="stripe")
    (one,) = claim("q", worker="w")
    assert (one.job_id, one.dependency) == (job_id, "stripe")


@committed
def test_a_project_without_dependencies_does_not_read_the_column(own_registry, read_once):
    make_job("q", dependency="stripe")
    with CaptureQueriesContext(connection) as captured:
        (one,) = claim("q", worker="w")
    assert one.dependency is None
    assert not any("dependency" in query["sql"] for query in captured)


@committed
def test_using_gives_a_job_another_dependency(stripe):
    job_id = int(stripe.using(dependency="github").enqueue().id)
    assert job(job_id).dependency == "github"
    (one,) = claim("q", worker="w")
    assert run_lease(one).dependency == "github"


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\n", 5])
def test_a_name_that_cannot_be_stored_is_refused_with_the_task(own_registry, name):
    with pytest.raises((InvalidValue, InvalidType), match=r"task tests\.worker\.test_retry_budget\.charge: dependency"):
        task(dependency=name)(charge)
