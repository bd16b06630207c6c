"""The chore that carries redrives out, in the monitor of workers and in reap_leases."""

import logging
from contextlib import nullcontext
from dataclasses import replace

import pytest
from django.core.management import call_command
from django.db import transaction

from jobqueue import enqueue
from jobqueue.conf import load
from jobqueue.db.clock import UtcNowPlus
from jobqueue.dead_letters import redrive, redrives, stop
from jobqueue.exceptions import DatabaseBusy
from jobqueue.maintenance.cleaner import CLEANERS
from jobqueue.models import Job, Redrive
from jobqueue.runs import redrive_steps, stepping
from jobqueue.runs.redrive_steps import step
from jobqueue.runs.stepping import Runner
from jobqueue.transitions import ack, fail
from jobqueue.worker.monitor import chores, housekeeping
from jobqueue.worker.monitor.housekeeping import Housekeeping
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.cli.helpers import options
from tests.dead_letters.test_redrive import dead, due_now, put_off_for_long  # noqa: F401
from tests.factories import claim_one, state
from tests.faults.test_lock_conflicts import ended, in_thread
from tests.marks import committed
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db


def house(*words, only=()):
    """The housekeeping of a worker, with these chores alone if there are any."""
    found = Housekeeping(options(*words), Scoreboard(1, 1), list, lambda: None, None, nullcontext())
    for name in ("reap", "renew_workers", "warn_of_unserved"):
        setattr(found, name, lambda: None)
    if only:
        found._chores.table = [chore for chore in found._chores.table if chore.name in only]
    return found


def test_a_monitor_carries_redrives_out_and_follows_a_full_batch_soon(monkeypatch):
    ids = dead(5)
    redrive(everything=True)
    monkeypatch.setattr(chores, "REDRIVES", replace(redrive_steps.REDRIVES, most=2))
    found = house(only=["redriver"])
    found._chores._step_seconds = 0.0
    pauses = []
    for _ in range(3):
        found.thread._pause_seconds = 0.2
        found.round()
        pauses.append(found.thread._pause_seconds)
    assert {state(job_id) for job_id in ids} == {"READY"}
    assert pauses[0] < 0.2
    assert pauses[2] == 0.2
    assert redrives()[0].state == "done"


def test_an_idle_monitor_looks_about_once_a_second_by_one_statement(monkeypatch, django_assert_max_num_queries):
    clock = [1000.0]
    monkeypatch.setattr(housekeeping.time, "monotonic", lambda: clock[0])
    found = house(only=["redriver", "bulk runner"])
    found.round()
    # In five seconds, of 0.8 to 1.2 s between two looks for redrives and for bulk verbs, and of twice that.
    with django_assert_max_num_queries(6 + 6 + 3):
        for _ in range(25):
            clock[0] += 0.2
            found.round()


def test_a_monitor_without_chores_leaves_redrives_to_others():
    ids = dead()
    redrive(everything=True)
    house("--no-reaper").round()
    assert state(*ids) == "FAILED"


def test_reap_leases_carries_redrives_out():
    ids = dead(3)
    redrive(everything=True)
    call_command("reap_leases", "--dry-run", verbosity=0)
    assert Job.objects.dead().count() == 3
    call_command("reap_leases", verbosity=0)
    assert {state(job_id) for job_id in ids} == {"READY"}


def test_a_canary_that_fails_is_a_warning(caplog):
    dead(2)
    run = redrive(everything=True, canary=1)
    Runner(redrive_steps.REDRIVES).run_once(load(), using="default")
    fail(claim_one(), error=ValueError("again"))
    due_now()
    with caplog.at_level(logging.WARNING):
        Runner(redrive_steps.REDRIVES).run_once(load(), using="default")
    assert f"redrive {run.id} of dead letters was stopped: job" in caplog.text


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks no rows")
def test_a_redrive_waits_for_a_job_that_another_transaction_has_locked():
    one, two, three = dead(3)
    redrive(everything=True)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=two)
        thread, _ = in_thread(lambda: step(using="default"))
        thread.join()
        assert [state(one), state(two), state(three)] == ["READY", "FAILED", "FAILED"]
    assert step(using="default") is None
    due_now()
    step(using="default")
    assert [state(one), state(two), state(three)] == ["READY"] * 3
    assert redrives()[0].state == "done"


def test_redrives_that_ended_long_ago_are_deleted_and_others_stay(settings):
    old, kept, running = (redrive(job_ids=dead()).id for _ in range(3))
    assert stop(old)
    assert stop(kept)
    Redrive.objects.exclude(pk=kept).update(created_at=UtcNowPlus(-91 * 86_400))
    Redrive.objects.filter(pk=old).update(ended_at=UtcNowPlus(-91 * 86_400))
    settings.JOBQUEUE = {"REDRIVE_RETENTION_SECONDS": None}
    assert CLEANERS["redrives"].run_once(load(), using="default").total() == 0
    settings.JOBQUEUE = {}
    call_command("reap_leases", verbosity=0)
    assert [run.id for run in redrives()] == [running, kept]


def test_a_step_that_has_found_nothing_is_followed_soon(monkeypatch):
    monkeypatch.setattr(redrive_steps, "_WINDOW", 2)
    dead(4)
    (wanted,) = dead(task="app.rare")
    redrive(task="app.rare")
    chore = Runner(redrive_steps.REDRIVES)
    states = []
    while not states or states[-1]:
        chore.run_once(load(), using="default")
        states.append(chore.more)
    assert states == [True, True, False]
    assert state(wanted) == "READY"


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no locks of single keys")
def test_a_redrive_that_meets_the_key_of_an_open_transaction_holds_up_no_other(settings, caplog):
    settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "ON_KEY_FAILURE": "skip"}
    blocked = enqueue("a", 1, ordering_key="k", max_attempts=1)
    fail(claim_one("a"), error=ValueError("x"))
    (free,) = dead(queue="b")
    waits, goes_on = redrive(queue="a"), redrive(queue="b")
    Redrive.objects.filter(pk=waits.id).update(due_at=UtcNowPlus(-60))
    chore = Runner(redrive_steps.REDRIVES)

    def both():
        for _ in range(2):
            chore.run_once(load(), using="default")

    caplog.set_level(logging.INFO, "jobqueue.worker")
    with transaction.atomic():
        enqueue("a", 2, ordering_key="k")
        for _ in range(2):
            thread, found = in_thread(both)
            ended(thread)
            assert found == [None]
            due_now()
        assert [state(blocked), state(free)] == ["FAILED", "READY"]
    assert caplog.text.count(f"redrive {waits.id} of dead letters is waiting, retrying every second") == 1
    chore.run_once(load(), using="default")
    assert state(blocked) == "READY"
    assert {run.id: run.state for run in redrives()} == {waits.id: "done", goes_on.id: "done"}


def test_the_log_has_a_line_at_each_new_state_and_none_per_step(caplog):
    dead(5)
    run = redrive(everything=True, canary=1)
    chore = Runner(redrive_steps.REDRIVES, 2)
    caplog.set_level(logging.INFO, "jobqueue.worker")
    caplog.set_level(logging.DEBUG, "jobqueue.detail")
    for _ in range(3):
        due_now()
        chore.run_once(load(), using="default")
    ack(claim_one())
    due_now()
    while chore.run_once(load(), using="default")["jobs_redriven"] or chore.more:
        pass
    lines = [(one.name, one.levelname, one.getMessage()) for one in caplog.records if "redrive" in one.getMessage()]
    name = f"redrive {run.id} of dead letters"
    assert [words for *_, words in lines if "in this step" not in words] == [
        f"{name}: canary: 1 redriven, 0 skipped",
        f"{name}: running: 1 redriven, 0 skipped",
        f"{name}: done: 5 redriven, 0 skipped",
    ]
    assert {(who, level) for who, level, words in lines if "in this step" in words} == {("jobqueue.detail", "DEBUG")}


def test_a_step_that_raises_is_told_with_its_traceback_once(caplog):
    dead()
    run = redrive(everything=True)
    Redrive.objects.update(filters={"color": "red"})
    chore = Runner(redrive_steps.REDRIVES)
    caplog.set_level(logging.INFO, "jobqueue.worker")
    for _ in range(2):
        chore.run_once(load(), using="default")
    (line,) = [one for one in caplog.records if one.name == "jobqueue.worker"]
    assert line.getMessage().startswith(f"redrive {run.id} of dead letters was stopped: FieldError: ")
    assert line.exc_info is not None


def test_a_redrive_that_the_database_will_not_put_off_raises(monkeypatch):
    dead()
    redrive(everything=True)

    def refused(*_, **__):
        raise DatabaseBusy("a lock")

    monkeypatch.setattr(redrive_steps, "retry_locked", refused)
    monkeypatch.setattr(stepping, "put_off", lambda *_: False)
    with pytest.raises(DatabaseBusy):
        step(using="default")
