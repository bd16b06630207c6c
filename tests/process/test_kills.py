"""Workers that are killed, frozen and cut off: nothing is lost, nothing is charged wrongly, no late answer counts."""

import os
import random
import signal
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import transaction

from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import Job, JobAttempt, Worker
from jobqueue.transitions import cancel
from tests.app import tasks
from tests.factories import enqueue_times, expire, job, now, row, seconds_from_now, set_columns, state
from tests.marks import committed
from tests.patience import patient, wait_until
from tests.process.harness import LONG, kill_sessions
from tests.process.probe import let_run_out
from tests.process.probe import starts as started
from tests.settings import VENDOR

pytestmark = committed
PATIENT = {"JOBQUEUE_TEST_STALLED_SECONDS": "600"}  # what is claimed ahead stays so


def all_done():
    return not Job.objects.exclude(status=Job.Status.DONE).exists()


def test_a_killed_child_is_replaced_and_its_job_recovered_at_once(worker, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker(*LONG)
    (first,) = started(evidence)
    due_at = job(job_id).run_at
    os.kill(int(first[1]), signal.SIGKILL)
    second = started(evidence, 2)[1]
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    # Neither the end of the lease nor a back-off was waited for.
    assert job(job_id).run_at == due_at
    assert (job(job_id).attempts, job(job_id).fence, job(job_id).cause) == (1, 2, "lost")
    assert second[1] != first[1]
    assert second[3:] == ["2", "2"]
    assert JobAttempt.objects.get().worker == first_worker(first)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def first_worker(line):
    return Worker.objects.get(pid=int(line[1])).name


def test_a_killed_group_is_recovered_by_reap_leases_when_the_lease_has_run_out(worker, start, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker()
    started(evidence)
    group.signal_all(signal.SIGKILL)
    group.end()
    assert state(job_id) == "PROCESSING"
    # Nobody renews it any more: what is left of it is cut short, and then it runs out.
    assert seconds_from_now(job(job_id).lock_until) <= 20
    set_columns(job_id, lock_until=UtcNowPlus(0.5))
    wait_until(lambda: Job.objects.lapsed().exists(), what="the end of the lease")
    reaper = start("reap_leases")
    assert reaper.wait() == 0
    reaper.prints("requeued 1")
    assert (state(job_id), job(job_id).attempts) == ("READY", 1)
    gate.touch()
    assert worker("--drain").wait() == 0
    assert (state(job_id), job(job_id).attempts, job(job_id).fence) == ("DONE", 1, 2)


def test_a_killed_supervisor_leaves_no_orphans_and_loses_nothing(worker, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker()
    started(evidence)
    group.signal(signal.SIGKILL)
    gate.touch()
    wait_until(lambda: not group.members(), what="the end of the children")
    assert (state(job_id), job(job_id).attempts, len(evidence.read("effect"))) == ("DONE", 0, 1)


@pytest.mark.parametrize(
    ("task", "most"),
    [(tasks.die, 3), (tasks.killed_by, 2), (tasks.reads_null, 2)],
    ids=["os._exit", "SIGSEGV", "bad-pointer"],
)
def test_a_job_that_kills_its_worker_is_failed_after_exactly_max_attempts_starts(worker, evidence, task, most):
    bystanders = [tasks.add.using(priority=9).enqueue(n, 0).id for n in range(20)]
    killer = task.using(priority=5).enqueue(*([int(signal.SIGSEGV)] if task is tasks.killed_by else [])).id
    bystanders += [tasks.add.enqueue(n, 0).id for n in range(20)]
    group = worker(*LONG, "--concurrency", 1)
    wait_until(lambda: state(killer) == "FAILED" and not Job.objects.ready().exists())
    wait_until(lambda: {state(i) for i in bystanders} == {"DONE"})
    assert [line[3] for line in evidence.read("start")] == [str(n + 1) for n in range(most)]
    assert (job(killer).attempts, job(killer).cause) == (most, "lost")
    assert {job(i).attempts for i in bystanders} == {0}
    assert {a.job_id for a in JobAttempt.objects.all()} == {int(killer)}
    assert len(evidence.read("effect")) >= len(bystanders)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_death_repeats_no_more_jobs_than_there_were_threads(worker, evidence):
    """faults.md I15: repeated runs are bounded by faults. Jobs that had ended must not run again for a neighbour."""
    for n in range(20):
        tasks.add.using(priority=9).enqueue(n, 0)
    tasks.die.using(priority=5, max_attempts=1).enqueue()
    for n in range(20):
        tasks.add.enqueue(n, 0)
    worker(*LONG, "--concurrency", 1)
    wait_until(lambda: Job.objects.filter(status__in=(0, 1)).count() == 0)
    assert len(evidence.read("effect")) <= 40 + 1


@pytest.mark.parametrize(
    ("permanent", "ended", "words"), [(False, "READY", "ValueError: at last"), (True, "FAILED", "ResultError")]
)
def test_a_failure_counts_though_its_process_died_before_it_was_written(
    worker, evidence, gate, permanent, ended, words
):
    job_id = tasks.waits_and_fails.using(backoff=600).enqueue(str(gate), permanent).id
    group = worker(*LONG, "--concurrency", 1, JOBQUEUE_TEST_TELL_FAILURES="1")
    (start,) = started(evidence)
    with transaction.atomic():
        # The end of the run cannot be written while somebody has this lock.
        Job.objects.filter(pk=job_id).update(priority=1)
        gate.touch()
        wait_until(lambda: evidence.read("failure-kept"), what="the end of the run, written to the scoreboard")
        os.kill(int(start[1]), signal.SIGKILL)
        group.prints("ended unexpectedly")
    wait_until(lambda: job(job_id).attempts == 1, what="the attempt")
    assert (state(job_id), job(job_id).crashes, len(evidence.read("start"))) == (ended, 0, 1)
    assert words in job(job_id).last_error
    assert ended == "FAILED" or job(job_id).run_at > now() + timedelta(seconds=400)


def test_sigterm_finishes_what_runs_and_gives_the_rest_back_without_an_attempt(worker, evidence, gate):
    for n in range(30):
        tasks.add.using(priority=9).enqueue(n, 0)
    running = tasks.gated.using(priority=5).enqueue(str(gate)).id
    rest = [tasks.add.enqueue(n, 0).id for n in range(20)]
    group = worker("--concurrency", 1, **PATIENT)
    started(evidence)
    wait_until(lambda: Job.objects.leased().count() > 1, what="jobs claimed ahead")
    group.signal(signal.SIGTERM)
    wait_until(lambda: Job.objects.leased().count() == 1, what="unstarted jobs given back")
    assert state(running) == "PROCESSING"
    gate.touch()
    assert group.wait() == 0
    assert (state(running), job(running).attempts) == ("DONE", 0)
    assert {state(i) for i in rest} == {"READY"}
    assert {job(i).attempts for i in rest} == {0}
    assert not JobAttempt.objects.exists()
    assert len(evidence.read("effect")) == 31


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_leaves_at_once_and_gives_everything_back(worker, evidence, gate, number):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker(*LONG)
    started(evidence)
    group.signal(number)
    group.prints("stopping")
    group.signal(number)
    assert group.wait() == 128 + number
    assert not group.members()
    assert (state(job_id), job(job_id).attempts) == ("READY", 0)
    assert not JobAttempt.objects.exists()
    gate.touch()
    assert worker("--drain").wait() == 0
    assert (state(job_id), job(job_id).attempts, job(job_id).fence) == ("DONE", 0, 2)


def test_a_job_that_outlasts_the_shutdown_timeout_is_given_back(worker, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker(*LONG, "--shutdown-timeout", "500ms")
    started(evidence)
    group.signal(signal.SIGTERM)
    group.wait()
    assert (state(job_id), job(job_id).attempts) == ("READY", 0)
    assert not group.members()


def test_a_running_job_sees_that_its_worker_stops(worker, evidence):
    job_id = tasks.patient.enqueue(600).id
    group = worker()
    started(evidence)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert (state(job_id), evidence.read("effect")[0][5]) == ("DONE", "1")


def test_a_running_job_sees_that_it_is_to_be_canceled(worker, evidence):
    job_id = tasks.patient.enqueue(600).id
    worker()
    started(evidence)
    assert cancel(job_id)
    wait_until(lambda: evidence.read("effect"))
    assert evidence.read("effect")[0][5] == "1"
    wait_until(lambda: state(job_id) in ("DONE", "CANCELED"))


def test_a_group_frozen_past_its_lease_is_refused_when_it_wakes(worker, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    frozen = worker()
    started(evidence)
    frozen.freeze()
    # Nobody is there to renew it: this is its end for all others, and for the frozen ones when they look.
    expire(int(job_id))
    other = worker()
    assert started(evidence, 2)[1][3:] == ["2", "2"]
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    before = row(job_id)
    frozen.thaw()
    wait_until(lambda: len(evidence.read("effect")) == 2, what="the late end of the first run")
    wait_until(lambda: "refused" in frozen.text() or "lost" in frozen.text(), what="the word about the refused ack")
    assert row(job_id) == before
    for group in (frozen, other):
        group.signal(signal.SIGTERM)
        assert group.wait() == 0
    assert row(job_id) == before


def test_a_child_frozen_alone_loses_its_job_to_another(worker, evidence, gate):
    job_id = tasks.gated.enqueue(str(gate)).id
    group = worker("--processes", 2)
    first = int(started(evidence)[0][1])
    group.freeze(first)
    # The monitor goes on.
    let_run_out(job_id)
    second = int(started(evidence, 2)[1][1])
    assert second != first
    gate.touch()
    wait_until(lambda: state(job_id) == "DONE")
    before = row(job_id)
    group.thaw(first)
    wait_until(lambda: len(evidence.read("effect")) == 2)
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert row(job_id) == before


def test_a_job_that_holds_the_gil_longer_than_its_lease_keeps_it(worker, evidence, tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    job_id = tasks.hold_the_gil.enqueue(str(gate)).id
    lease_seconds = patient(1)
    worker("--lease", f"{lease_seconds}s", "--heartbeat", "0.2s")
    started(evidence)
    first = job(job_id).locked_at
    wait_until(lambda: seconds_from_now(first) < -lease_seconds - 0.5, what="the end of the lease it began with")
    with open(os.open(gate, os.O_WRONLY | os.O_NONBLOCK), "w"):
        wait_until(lambda: state(job_id) == "DONE")
    assert (job(job_id).attempts, job(job_id).fence, len(evidence.read("start"))) == (0, 1, 1)


def test_sighup_replaces_the_children_and_loses_nothing(worker, evidence):
    tasks.add.enqueue(1, 1)
    group = worker()
    wait_until(all_done)
    group.signal(signal.SIGHUP)
    wait_until(lambda: Worker.objects.filter(stopped_at__isnull=False).exists())
    tasks.add.enqueue(2, 2)
    wait_until(all_done)
    assert len({line[1] for line in evidence.read("effect")}) == 2
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_children_killed_again_and_again_finish_every_job_once(worker, evidence):
    kills, rng = 8, random.Random(7)
    group = worker("--heartbeat", "2s", "--processes", 4, "--concurrency", 2)
    for _ in range(kills):
        # Each kill has jobs of its own to hit, however late it comes.
        seen = len(evidence.read("start"))
        enqueue_times(25, tasks.sleep, 0.05)
        started(evidence, seen + 10)
        children = wait_until(lambda: {int(line[1]) for line in evidence.read("start")[-10:]} & set(group.members()))
        os.kill(rng.choice(sorted(children)), signal.SIGKILL)
    wait_until(all_done, what="the end of all jobs")
    starts = [(line[2], line[4]) for line in evidence.read("start")]
    assert len(starts) == len(set(starts)), "one claim was started twice"
    # Two threads a child: what runs, and what has just ended and is not written down yet.
    assert len(starts) - 200 <= 2 * 2 * kills
    assert sum(Job.objects.values_list("attempts", flat=True)) <= 2 * kills
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions that could be killed")
@pytest.mark.parametrize("rounds", [8])
def test_killed_connections_lose_nothing(worker, evidence, rounds):
    enqueue_times(400, tasks.sleep, 0.02)
    group = worker("--processes", 2)
    killed = 0
    for number in range(rounds):
        wait_until(lambda: len(evidence.read("effect")) >= 40 * (number + 1) or all_done())  # noqa: B023
        killed += kill_sessions()
    with suppress(AssertionError):  # what is left says more
        wait_until(all_done)
    left = Job.objects.exclude(status=Job.Status.DONE).values_list("pk", "status", "fence", "locked_by", "lock_until")
    assert list(left) == [], f"{len(evidence.read('effect'))} effects; now {now()}\n{group.text()[-3000:]}"
    assert killed >= rounds
    assert len(evidence.read("effect")) == 400, "a job was run twice, or a run was lost, for the queue's own trouble"
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert "Traceback" not in group.text()
