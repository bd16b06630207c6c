"""manage.py jobs retry: by id, and alone in a process of its own."""

import json
import os
import time
from contextlib import contextmanager, suppress
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections

from jobqueue.exceptions import JobLost
from jobqueue.flow import pause
from jobqueue.models import Job, JobAttempt
from jobqueue.signals import lease_lost
from jobqueue.transitions import ack, alone, claim, fail_many, reap
from jobqueue.transitions.alone import claim_alone
from jobqueue.worker import alone as worker_alone
from jobqueue.worker.shared.processes import Forker
from jobqueue.worker.shared.scoreboard import CANCEL, LOST, Hold, LeaseSlot, ProcessSlot, Scoreboard
from tests.app import tasks
from tests.factories import expire, job, make_in_state, make_job, set_columns, state
from tests.marks import committed, finding
from tests.patience import wait_until

pytestmark = committed


def run(*words):
    """Its exit status, and what it printed."""
    out = StringIO()
    try:
        call_command("jobs", "retry", *map(str, words), stdout=out)
    except SystemExit as stopped:
        return stopped.code, out.getvalue()
    return 0, out.getvalue()


def quarantined(task, *args):
    job_id = int(task.using(queue_name="q", max_attempts=1).enqueue(*args).id)
    assert fail_many(claim("q", worker="w"), error=JobLost("its process was killed")) == []
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", "quarantined")
    return job_id


def test_it_retries_jobs_by_their_ids():
    one, two, other = make_in_state("FAILED"), make_in_state("CANCELED"), make_in_state("DONE")
    status, said = run(one, two, other)
    assert status == 5
    assert said.splitlines()[:2] == [f"job {one} is now READY", f"job {two} is now READY"]
    assert f"job {other} was not changed" in said
    assert [state(one), state(two), state(other)] == ["READY", "READY", "DONE"]


def test_a_word_that_is_no_id_is_refused_before_anything_is_changed():
    one = make_in_state("FAILED")
    with pytest.raises(CommandError):
        run(one, "x")
    assert state(one) == "FAILED"


def test_a_quarantined_job_runs_alone():
    job_id = quarantined(tasks.add, 1, 2)
    status, said = run(job_id, "--alone", "--json")
    assert (status, json.loads(said)["jobs"]) == (0, [{"id": job_id, "state": "DONE"}])
    assert (state(job_id), job(job_id).result, job(job_id).wait_reason) == ("DONE", 3, None)


@finding("F4")
def test_a_job_that_may_not_start_now_is_left_as_it_was_and_told_why():
    job_id = quarantined(tasks.add, 1, 2)
    pause(job(job_id).queue, reason="r")
    with pytest.raises(CommandError, match=f"job {job_id} may not start now: queue .* is paused. Nothing was changed"):
        run(job_id, "--alone")
    assert (state(job_id), job(job_id).wait_reason) == ("FAILED", "quarantined")


def test_a_job_that_kills_its_process_is_quarantined_again_and_only_that_process_dies():
    job_id = quarantined(tasks.die)
    neighbour = make_job()
    status, said = run(job_id, "--alone")
    assert (status, said) == (0, f"job {job_id} is now FAILED\n")
    found = job(job_id)
    assert (found.wait_reason, found.attempts, found.crashes, found.cause) == ("quarantined", 2, 2, "lost")
    assert "exited with status 9 while it ran alone" in found.last_error
    assert JobAttempt.objects.filter(job_id=job_id).count() == 2
    assert state(neighbour) == "READY"


def test_a_job_that_fails_alone_is_failed_without_the_mark():
    job_id = quarantined(tasks.boom)
    assert run(job_id, "--alone")[0] == 0
    assert (state(job_id), job(job_id).wait_reason, job(job_id).attempts) == ("FAILED", None, 2)


def test_the_hard_limit_of_a_task_ends_a_job_that_runs_alone():
    job_id = quarantined(tasks.stuck)
    assert run(job_id, "--alone")[0] == 0
    found = job(job_id)
    assert (state(job_id), found.cause, found.attempts, found.wait_reason) == ("FAILED", "timeout", 2, None)
    assert "ran for longer than its hard_timeout_seconds" in found.last_error


def test_the_soft_limit_of_a_task_is_raised_in_a_job_that_runs_alone():
    job_id = quarantined(tasks.overlong)
    assert run(job_id, "--alone")[0] == 0
    assert (state(job_id), job(job_id).cause) == ("FAILED", "timeout")
    assert "SoftTimeout" in job(job_id).last_error


@pytest.mark.parametrize("name", ["tests.app.tasks.asks", "no.such.task"])
def test_a_job_that_gives_itself_back_while_it_runs_alone_is_held(name):
    """Another process would run it next."""
    job_id = quarantined(tasks.asks, "snooze")
    set_columns(job_id, task=name)
    assert run(job_id, "--alone") == (0, f"job {job_id} is now READY\n")
    found = job(job_id)
    assert (found.gate, found.attempts) == (2, 1)
    assert found.wait_reason.startswith("held: it ran alone and gave itself back")
    assert claim("q", worker="w") == []


def test_the_end_of_a_run_is_not_announced_twice():
    job_id = quarantined(tasks.add, 1, 2)
    told = []
    with told_of(lease_lost, told):
        run(job_id, "--alone")
    assert told == []


def test_a_claim_whose_commit_had_no_answer_is_found_again(monkeypatch):
    job_id, tries = quarantined(tasks.add, 1, 2), []
    claim_once = alone._claim

    def lost_answer(*given):
        lease = claim_once(*given)
        tries.append(lease)
        if len(tries) == 1:
            raise OperationalError(2013, "Lost connection to MySQL server during query")
        return lease

    monkeypatch.setattr(alone, "_claim", lost_answer)
    monkeypatch.setattr(alone, "retry_transient", lambda verb, work, using: again(work))
    lease = claim_alone(job_id, worker="w")
    assert (lease.token, lease.fence, lease.payload) == (tries[0].token, tries[0].fence, tries[0].payload)


def again(work):
    """Call `work` twice: the answer to its first commit was lost."""
    with suppress(OperationalError):
        return work()
    return work()


@contextmanager
def told_of(signal, told):
    """Note what this signal tells."""

    def note(sender, **facts):
        told.append(facts)

    signal.connect(note)
    try:
        yield
    finally:
        signal.disconnect(note)


@pytest.mark.parametrize("name", ["READY", "PROCESSING", "DONE"])
def test_a_job_that_others_may_run_or_that_is_done_does_not_run_alone(name):
    job_id = make_in_state(name)
    status, said = run(job_id, "--alone")
    assert status == 5
    assert "was not changed" in said
    assert state(job_id) == name


def test_a_held_job_can_be_claimed_alone_and_keeps_its_attempts():
    job_id = make_job(gate=2, max_attempts=5)
    lease = claim_alone(job_id, worker="w")
    assert (lease.job_id, lease.attempt, lease.max_attempts) == (job_id, 1, 5)
    assert claim_alone(job_id, worker="w") is None


def test_a_job_that_waits_for_its_key_stays_as_it_was():
    first = int(tasks.add.using(queue_name="q", ordering_key="k").enqueue(1, 2).id)
    second = int(tasks.add.using(queue_name="q", ordering_key="k").enqueue(1, 2).id)
    assert Job.objects.filter(pk=second).get().gate == 1
    from jobqueue.transitions import cancel

    assert cancel(second)
    assert claim_alone(second, worker="w") is None
    assert [state(first), state(second)] == ["READY", "CANCELED"]
    set_columns(first, priority=1)


def test_the_end_of_a_run_that_the_database_does_not_take_at_once_is_written_again(monkeypatch):
    job_id = quarantined(tasks.add, 1, 2)
    # As while another session has locked its row.
    monkeypatch.setattr(worker_alone, "settle", lambda outcomes, counts: list(outcomes))
    assert run(job_id, "--alone")[0] == 0
    assert (state(job_id), job(job_id).result, job(job_id).wait_reason) == ("DONE", 3, None)


def test_a_job_that_runs_alone_sees_that_it_is_to_stop_when_it_is_canceled(monkeypatch):
    seen, slot, lease = [], LeaseSlot(), claim_alone(quarantined(tasks.add, 1, 2), worker="w")

    def runs(leases, run):
        seen.append(run.asked_to_stop())
        slot.flags |= CANCEL
        seen.append(run.asked_to_stop())
        return []

    monkeypatch.setattr(worker_alone, "perform", runs)
    watchdog = SimpleNamespace(duties=[], start=lambda: None)
    worker_alone.perform_alone(lease, slot, ProcessSlot(), lambda: False, watchdog)
    assert seen == [False, True]


class Bell:
    """Rung in this process, heard in a forked one."""

    def __init__(self):
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def ring(self):
        return os.write(self._write, b"x")

    def rung(self, *_):
        with suppress(BlockingIOError):
            return os.read(self._read, 1)


@pytest.fixture
def alone_until():
    """Claim a job alone, fork a process that ends when `over` is true, and wait for it as the command does."""

    def wait(over, prepare=lambda lease: None):
        lease = claim_alone(quarantined(tasks.add, 1, 2), worker="w")
        prepare(lease)
        connections.close_all()
        scoreboard = Scoreboard(1, 1)
        scoreboard.fill(0)
        slot = scoreboard.lease_slots[0][0]
        slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=60.0, lease_until=time.monotonic() + 60)
        slot.hold = Hold.RUNNING

        def runs():
            wait_until(lambda: over(slot), what="a sign that it is to end")
            return 0

        scoreboard.slots[0].pid = Forker().fork(runs)
        assert os.waitstatus_to_exitcode(worker_alone._wait(lease, scoreboard, 0.05)) == 0
        return slot

    return wait


def reaped(lease):
    expire(lease)
    reap()


@pytest.mark.parametrize("lost", [expire, reaped])
def test_a_job_that_runs_alone_is_asked_to_stop_if_its_lease_is_lost(alone_until, caplog, lost):
    is_told, bell = "has lost its lease while it runs alone; it is asked to stop", Bell()
    caplog.handler.addFilter(lambda record: is_told not in record.getMessage() or bell.ring())
    alone_until(lambda slot: slot.flags & LOST and bell.rung(), prepare=lost)
    assert caplog.text.count(is_told) == 1


def test_a_job_that_has_finished_itself_has_lost_no_lease(alone_until, caplog, monkeypatch):
    renew, asked, bell = worker_alone.renew_in_hand, [], Bell()

    def counted(*given, **more):
        asked.append(given)
        if len(asked) == 3:
            bell.ring()
        return renew(*given, **more)

    monkeypatch.setattr(worker_alone, "renew_in_hand", counted)
    alone_until(bell.rung, prepare=ack)
    assert "lost its lease" not in caplog.text


def test_renewals_that_fail_while_a_job_runs_alone_are_logged_once_and_tried_again(alone_until, caplog, monkeypatch):
    caplog.set_level("INFO", "jobqueue.worker")
    renew, asked, bell = worker_alone.renew_in_hand, [], Bell()

    def refused(*given, **more):
        asked.append(given)
        if len(asked) < 7:
            raise OperationalError("away")
        found = renew(*given, **more)
        bell.ring()
        return found

    monkeypatch.setattr(worker_alone, "renew_in_hand", refused)
    alone_until(bell.rung)
    said = [record.getMessage() for record in caplog.records if "renewed" in record.getMessage()]
    assert len(said) == 2
    assert "cannot be renewed (away); it runs on, and the renewal is tried again" in said[0]
    assert "is renewed again" in said[1]


def test_a_job_that_runs_alone_stops_when_nobody_renews_its_lease_any_more(monkeypatch):
    lease, seen, scoreboard = claim_alone(quarantined(tasks.add, 1, 2), worker="w"), [], Scoreboard(1, 1)
    slot = scoreboard.lease_slots[0][0]

    def runs(leases, run):
        seen.append(run.asked_to_stop())
        slot.lease_until = time.monotonic() - 1
        seen.append(run.asked_to_stop())
        scoreboard.header.renewed_at -= lease.lease_seconds
        seen.append(run.asked_to_stop())
        return []

    monkeypatch.setattr(worker_alone, "perform", runs)
    monkeypatch.setattr(worker_alone, "Watchdog", lambda *_: SimpleNamespace(duties=[], start=lambda: None))
    worker_alone._run(lease, scoreboard, 0, lambda: False)
    assert seen == [False, False, True]
