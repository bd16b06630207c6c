"""A worker that nobody disturbs: it drains, tells, and exits as documented."""

import json
import signal
from datetime import timedelta

import pytest

from jobqueue import enqueue, enqueue_many
from jobqueue.models import Job, JobAttempt, Worker
from tests.app import coroutines, tasks
from tests.factories import claim_one, enqueue_times, expire, job, make_job, now, seconds_from_now, set_columns, state
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.process.harness import ROOT

pytestmark = committed


FRESH = timedelta(seconds=1)


def states():
    return {Job.Status(s).name for s in Job.objects.values_list("status", flat=True)}


@pytest.mark.parametrize("options", [(), ("--processes", 2), ("--concurrency", 1), ("--batch-size", 1)])
def test_drain_runs_everything_once_and_exits_0(worker, evidence, options):
    ids = [tasks.add.enqueue(n, 1).id for n in range(60)]
    ids += map(str, enqueue_many("webhooks", [{"n": n} for n in range(60)]))
    group = worker("--drain", *options)
    assert group.wait() == 0, group.text()
    assert states() == {"DONE"}
    assert sorted(line[2] for line in evidence.read("effect")) == sorted(ids)
    assert job(ids[0]).result == 1
    assert not group.members()


class Drained:
    """What one drain has left of the jobs of several tests, each of which needs no more than that they were run."""

    def __init__(self, worker, evidence):
        self.begun_at = now()
        self.later = make_job("webhooks")
        set_columns(self.later, run_at="2090-01-01T00:00:00Z")
        self.unknown = [make_job("q", payload=NO_ARGUMENTS, task="old.version.task"), make_job("nobody-handles-this")]
        ours = (f"tests.app.tasks.{name}" for name in ("note", "Unprintable", "not_there"))
        paths = ("os.system", "builtins.eval", "antigravity", *ours)
        self.no_tasks = [make_job("q", payload={"args": ["true"], "kwargs": {}}, task=path) for path in paths]
        self.unstorable = int(tasks.unstorable.enqueue().id)
        self.left_open = int(tasks.leaves_a_transaction_open.enqueue().id)
        self.good = [int(tasks.add.enqueue(n, n).id) for n in range(5)]
        self.coroutine = int(tasks.coroutine.enqueue(21).id)
        group = worker("--drain", "--concurrency", 1, "--worker-name", "tester")
        assert group.wait() == 0, group.text()
        group.prints("old.version.task")
        self.jobs, self.workers = Job.objects.in_bulk(), list(Worker.objects.all())
        self.failed, self.lines = list(JobAttempt.objects.values_list("job_id", flat=True)), evidence.read()
        self.ended_at = now()

    def states(self, *ids):
        """The names of the states of these jobs."""
        return {Job.Status(self.jobs[job_id].status).name for job_id in ids}


NO_ARGUMENTS = {"args": [], "kwargs": {}}
DRAINED = []


@pytest.fixture
def drained(worker, evidence):
    """That drain; the first test that asks for it runs it."""
    if not DRAINED:
        DRAINED.append(Drained(worker, evidence))
    return DRAINED[0]


def test_a_drained_worker_has_registered_and_signed_off(drained):
    (row,) = drained.workers
    assert row.name.startswith("tester:")
    assert row.stopped_at is not None


def test_delayed_jobs_are_left_by_a_drain(drained):
    assert drained.states(drained.later) == {"READY"}


@pytest.mark.parametrize("task", [tasks.count_done, coroutines.count_done], ids=["thread", "coroutine"])
def test_a_task_with_ack_each_starts_when_the_end_of_the_one_before_is_committed(worker, task):
    ids = [task.enqueue().id for _ in range(30)]
    assert worker("--drain", "--concurrency", 1, "--async-concurrency", 1).wait() == 0
    assert [job(job_id).result for job_id in ids] == list(range(30))


def test_a_relay_outlives_the_signals_that_a_worker_outlives(start):
    relay = start("relay_outbox", "--interval", "50ms")
    relay.prints("relaying the outbox")
    relay.signal(signal.SIGUSR1)
    relay.prints("delivered so far")
    relay.signal(signal.SIGHUP)
    relay.prints("SIGHUP")
    relay.signal(signal.SIGTERM)
    assert relay.wait() == 0


def test_once_runs_one_job(worker, evidence):
    for n in range(3):
        tasks.add.enqueue(n, n)
    assert worker("--once").wait() == 0
    assert len(evidence.read("effect")) == 1
    assert Job.objects.ready().count() == 2


def test_once_with_nothing_due_exits_0(worker):
    assert worker("--once").wait() == 0


def test_max_jobs_stops_after_that_many_starts(worker, evidence):
    for n in range(9):
        tasks.add.enqueue(n, n)
    assert worker("--max-jobs", 4, "--processes", 2).wait() == 0
    assert len(evidence.read("effect")) == 4
    assert not Job.objects.leased().exists()


def test_only_the_named_queues_are_served(worker):
    mine, other = enqueue("webhooks", {"n": 1}), tasks.add.using(queue_name="other").enqueue(1, 1).id
    assert worker("--drain", "webhooks").wait() == 0
    assert (state(mine), state(other)) == ("DONE", "READY")


def test_excluded_queues_are_not_served(worker):
    mine, other = enqueue("webhooks", {"n": 1}), tasks.add.using(queue_name="other").enqueue(1, 1).id
    assert worker("--drain", "--queues=-other").wait() == 0
    assert (state(mine), state(other)) == ("DONE", "READY")


def test_an_unknown_task_is_parked_and_told_and_keeps_its_attempts(drained):
    assert drained.states(*drained.good) == {"DONE"}
    for job_id in drained.unknown:
        parked = drained.jobs[job_id]
        assert (parked.status, parked.attempts) == (Job.Status.READY, 0)
        assert drained.begun_at + timedelta(seconds=9) < parked.run_at < drained.ended_at + timedelta(seconds=75)
        assert parked.wait_reason
    assert "old.version.task" in drained.jobs[drained.unknown[0]].wait_reason
    assert not {*drained.unknown} & {*drained.failed}


@finding("N3")
def test_a_worker_without_the_code_of_jobs_leaves_them_to_one_that_has_it(worker, tmp_path, evidence):
    (tmp_path / "other_project.py").write_text(
        "from tests.settings_process import *\nINSTALLED_APPS.remove('tests.app')\nJOBQUEUE['SCHEDULES'] = {}\n"
    )
    without = worker(DJANGO_SETTINGS_MODULE="other_project", PYTHONPATH=f"{ROOT}:{tmp_path}")
    group = worker("--processes", 1, "--concurrency", 1)
    without.prints("waiting for jobs")
    group.prints("waiting for jobs")
    ids = [int(tasks.add.enqueue(n, 1).id) for n in range(50)]
    wait_until(lambda: states() == {"DONE"}, what="the end of all jobs")
    put_back = [found for found in Job.objects.in_bulk(ids).values() if found.run_at > found.created_at + FRESH]
    # None, except where the machine kept the worker with the code from working for seconds.
    assert len(put_back) < 25, without.text()


def test_a_dotted_path_that_is_no_task_is_never_imported(drained):
    assert drained.states(*drained.no_tasks) == {"READY"}
    assert not {str(job_id) for job_id in drained.no_tasks} & {line[2] for line in drained.lines}


def test_a_job_that_always_fails_starts_exactly_max_attempts_times(worker, evidence):
    wanted = {most: tasks.boom.using(max_attempts=most).enqueue().id for most in (1, 3)}
    group = worker()
    wait_until(lambda: {state(job_id) for job_id in wanted.values()} == {"FAILED"})
    group.end()
    for most, job_id in wanted.items():
        starts = [line[3] for line in evidence.read("start") if line[2] == job_id]
        assert starts == [str(n + 1) for n in range(most)]
        assert (job(job_id).attempts, JobAttempt.objects.filter(job_id=job_id).count()) == (most, most)
        assert "ValueError: boom" in job(job_id).last_error


def test_strange_ends_of_every_kind_leave_the_worker_alive(worker, evidence):
    ids = [tasks.strange.enqueue(kind).id for kind in tasks.STRANGE]
    ids += [
        t.using(max_attempts=1).enqueue().id
        for t in (tasks.leave, tasks.interrupt, tasks.unprintable, tasks.unstorable)
    ]
    good = tasks.add.enqueue(1, 1).id
    group = worker("--concurrency", 2)
    wait_until(lambda: {state(i) for i in ids} == {"FAILED"}, what="the end of all strange jobs")
    last = tasks.add.enqueue(2, 2).id
    wait_until(lambda: state(last) == "DONE")
    assert state(good) == "DONE"
    assert len({line[1] for line in evidence.read()}) == 1, "a child process died"
    assert all(job(i).last_error and job(i).attempts == 1 for i in ids)
    group.end()


def test_a_result_that_cannot_be_stored_is_failed_at_once_after_one_effect(drained):
    found = drained.jobs[drained.unstorable]
    assert (found.status, found.cause, found.result) == (Job.Status.FAILED, "format", None)
    assert [line[0] for line in drained.lines if line[2] == str(found.pk)] == ["effect"]


def test_an_open_transaction_of_one_job_does_not_reach_the_next(drained, vendor_name):
    assert drained.states(*drained.good) == {"DONE"}
    left_open = drained.jobs[drained.left_open]
    if vendor_name == "postgres":
        # Only there does a SELECT without a table begin a transaction, and a job that returns within one has failed.
        assert left_open.status != Job.Status.DONE
        assert "TransactionLeftOpen" in left_open.last_error
    else:
        assert left_open.status == Job.Status.DONE


def test_a_coroutine_is_run(drained):
    assert drained.jobs[drained.coroutine].result == 42


def test_reap_leases_tells_what_it_did(start):
    make_job()
    expire(claim_one())
    group = start("reap_leases", "--json")
    assert group.wait() == 0
    told = json.loads(group.text())
    assert (told["requeued"], told["dead"]) == (1, 0)
    group = start("reap_leases")
    assert group.wait() == 0
    group.prints("requeued 0")


def test_a_dry_run_prints_and_changes_nothing(worker):
    job_id = make_job("webhooks")
    # Only plain SQL can have given it this name.
    Job.objects.filter(pk=job_id).update(queue="web\x1b[2Jhooks")
    group = worker("--dry-run")
    assert group.wait() == 0
    group.prints(f"#{job_id}")
    assert "\x1b" not in group.text()
    assert (state(job_id), job(job_id).fence) == ("READY", 0)


def test_a_bad_default_in_the_environment_exits_2(start):
    group = start("runworker", "--drain", JOBQUEUE_WORKER_CONCURRENCY="many")
    assert group.wait() == 2
    group.prints("JOBQUEUE_WORKER_CONCURRENCY")


def test_the_environment_gives_defaults_and_the_flag_wins(start):
    assert start("runworker", JOBQUEUE_WORKER_DRAIN="1", JOBQUEUE_WORKER_CONCURRENCY="2").wait() == 0
    assert (
        start("runworker", "--concurrency", "3", JOBQUEUE_WORKER_DRAIN="1", JOBQUEUE_WORKER_CONCURRENCY="2").wait() == 0
    )


def test_a_database_without_tables_exits_3(start, tmp_path, vendor_name):
    name = str(tmp_path / "empty.sqlite3") if vendor_name == "sqlite" else "jobqueue_is_not_here"
    group = start("runworker", "--drain", JOBQUEUE_TEST_NAME=name)
    assert group.wait() == 3
    assert "Traceback" not in group.text()


def test_a_wrong_setting_exits_4(start, tmp_path):
    (tmp_path / "wrong_settings.py").write_text("from tests.settings_process import *\nJOBQUEUE = {'LEASE': 1}\n")
    group = start("runworker", "--drain", DJANGO_SETTINGS_MODULE="wrong_settings", PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert group.wait() == 4
    group.prints("LEASE")
    assert "Traceback" not in group.text()


def test_a_queues_own_lease_is_used_by_its_claims(start, tmp_path):
    own = "JOBQUEUE = {'QUEUES': {'slow': {'LEASE_SECONDS': 600}}}"
    (tmp_path / "slow_settings.py").write_text(f"from tests.settings_process import *\n{own}\n")
    job_id = tasks.gated.using(queue_name="slow").enqueue(str(tmp_path / "gate")).id
    start("runworker", DJANGO_SETTINGS_MODULE="slow_settings", PYTHONPATH=f"{ROOT}:{tmp_path}")
    wait_until(lambda: state(job_id) == "PROCESSING")
    assert (job(job_id).lock_until - job(job_id).locked_at).total_seconds() >= 600


@pytest.mark.parametrize("own", ["{'STARVE_SECONDS': 1.5}", "{}"], ids=["on", "off"])
def test_a_low_priority_below_an_endless_stream_gets_its_turn_if_the_queue_asks_for_it(start, tmp_path, own):
    text = f"from tests.settings_process import *\nJOBQUEUE = {{'QUEUES': {{'busy': {own}}}}}\n"
    (tmp_path / "busy_settings.py").write_text(text)
    begun = now()
    enqueue_times(100, tasks.work.using(queue_name="busy", priority=9), 0.2)
    low = tasks.add.using(queue_name="busy").enqueue(1, 1).id
    done = Job.objects.filter(status=Job.Status.DONE)
    options = ("--concurrency", 1, "--batch-size", 1, "busy")
    start("runworker", *options, DJANGO_SETTINGS_MODULE="busy_settings", PYTHONPATH=f"{ROOT}:{tmp_path}")

    def first_or_many_others():
        # Many, and jobs long enough that a busy machine makes them faster than they run.
        if Job.objects.ready().filter(priority=9).count() < 60:
            enqueue_times(40, tasks.work.using(queue_name="busy", priority=9), 0.2)
        return state(low) != "READY" or ("STARVE" not in own and done.count() >= 30)

    wait_until(first_or_many_others)
    assert (state(low) != "READY") == ("STARVE" in own)
    assert seconds_from_now(begun) < -1.5


def test_fail_on_error_exits_5_only_if_a_job_failed(worker):
    tasks.add.enqueue(1, 1)
    assert worker("--drain", "--fail-on-error").wait() == 0
    tasks.strange.enqueue("stop")
    assert worker("--drain", "--fail-on-error").wait() == 5


def test_an_end_that_cannot_be_put_into_words_costs_its_neighbours_nothing(worker, evidence):
    bad = tasks.unspeakable.enqueue().id
    others = [tasks.boom.using(max_attempts=1).enqueue().id for _ in range(6)]
    assert worker("--drain", "--lease", "600s").wait() == 0
    assert {state(job_id) for job_id in (bad, *others)} == {"FAILED"}
    assert set(Job.objects.filter(pk__in=others).values_list("cause", flat=True)) == {"data"}
    assert len(evidence.read("start")) == 7
