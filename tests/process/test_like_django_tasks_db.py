"""What django-tasks-db's tests ask of its worker, asked of ours; tests/conformance/mirrored.py says which is which."""

import signal
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

from jobqueue.base.compat import TaskResultStatus
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import ResultError
from jobqueue.models import Job
from tests.app import tasks
from tests.factories import now, state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import ROOT
from tests.races.actors import holding
from tests.settings import VENDOR

pytestmark = committed


def test_results_tell_how_each_run_ended_and_a_drain_ends_with_0(worker):
    good, known = tasks.add.enqueue(1, 2), tasks.introduces_itself.enqueue()
    once = {
        ValueError: tasks.boom.using(max_attempts=1).enqueue(),
        SystemExit: tasks.leave.using(max_attempts=1).enqueue(),
        KeyboardInterrupt: tasks.interrupt.using(max_attempts=1).enqueue(),
        ResultError: tasks.unstorable.enqueue(),
    }
    nested = tasks.strange.enqueue("nested")
    assert worker("--drain", "--worker-name", "tester").wait() == 0
    everything = [good, known, nested, *once.values()]
    assert {(result.status, result.attempts) for result in everything} == {(TaskResultStatus.READY, 0)}
    for result in everything:
        result.refresh()
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
        (name,) = result.worker_ids
        assert name.startswith("tester:")
    assert not Job.objects.ready().exists()
    assert (good.status, good.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert known.return_value == [known.id, 1, True]
    for wanted, result in [*once.items(), (ValueError, nested)]:
        assert (result.status, len(result.errors)) == (TaskResultStatus.FAILED, 1)
        assert result.errors[0].exception_class is wanted
        with pytest.raises(ValueError, match="failed"):
            _ = result.return_value
    assert once[ValueError].errors[0].traceback.rstrip().endswith("ValueError: boom")
    assert 'raise ValueError("boom")' in once[ValueError].errors[0].traceback
    assert "inside" in nested.errors[0].traceback
    assert issubclass(ResultError, TypeError)
    assert "JSON" in once[ResultError].errors[0].traceback


def test_due_jobs_run_by_priority_then_by_age_later_ones_when_due_and_an_idle_worker_leaves_at_once(worker, evidence):
    hours = timedelta(hours=1)
    ago, ahead = now() - hours, now() + hours

    def add(**fields):
        return tasks.add.using(**fields).enqueue(0, 0).id

    old, older = add(priority=20, run_after=ago), add(priority=20, run_after=ago - hours)
    later, urgent_later = add(run_after=ahead), add(priority=10, run_after=ahead + hours)
    urgent, low, lower = add(priority=10), add(priority=2), add(priority=-2)

    def ran():
        return [line[2] for line in evidence.read("effect")]

    group = worker("--concurrency", 1, "--shutdown-timeout", "1h")
    wait_until(lambda: len(ran()) >= 5, what="the end of all due jobs")
    assert ran() == [older, old, urgent, low, lower]
    assert (state(later), state(urgent_later)) == ("READY", "READY")
    Job.objects.ready().filter(pk__in=[later, urgent_later]).update(run_at=UtcNowPlus(-1))
    wait_until(lambda: len(ran()) == 7, what="the end of the later jobs")
    # In any order: a busy worker may overlook for a tenth of a second that a level above has become due.
    assert set(ran()[5:]) == {urgent_later, later}
    wait_until(lambda: not Job.objects.leased().exists())
    group.signal(signal.SIGTERM)
    # Not after --shutdown-timeout, for which nobody here would wait.
    assert group.wait() == 0
    assert not group.members()


def test_a_worker_serves_the_queues_it_is_told_and_says_what_it_ran_and_why_it_leaves(worker):
    home, one = (tasks.add.using(queue_name=name).enqueue(0, 0).id for name in ("default", "one"))
    ids = [tasks.add.using(queue_name="two").enqueue(n, 0).id for n in range(5)]
    group = worker("--max-jobs", 2, "--worker-name", "tester", "--queues=two,one,-one", "-v", 3)
    assert group.wait() == 0
    ran = [job_id for job_id in ids if state(job_id) == "DONE"]
    assert len(ran) == 2
    assert (state(home), state(one)) == ("READY", "READY")
    said = group.text()
    assert "worker tester:" in said
    assert "queues two, one, -one" in said
    assert [said.count(f"tests.app.tasks.add  #{job_id}  ") for job_id in ids] == [int(i in ran) for i in ids]
    assert "it has run its number of jobs; leaving" in said
    # Of -v 2 and 3, and the words at the start and the end.
    assert "1 process x 4 threads" in said
    assert "claimed 2 from two in " in said
    assert said.count("start   two  tests.app.tasks.add  #") == 2
    assert "wrote the outcomes of " in said
    assert "2 runs ended" in said.splitlines()[-1]
    quiet = worker("--drain", "--queues=*,-missing", "-v", 0)
    assert quiet.wait() == 0
    assert quiet.text() == ""
    assert not Job.objects.ready().exists()


def test_ctrl_c_lets_the_running_job_finish_under_the_name_it_was_started_with(worker, evidence, tmp_path):
    gate = tmp_path / "gate"
    result = tasks.gated.enqueue(str(gate))
    assert result.worker_ids == []
    group = worker("--worker-name", "tester")
    wait_until(lambda: evidence.read("start"), what="the start")
    result.refresh()
    (name,) = result.worker_ids
    assert name.startswith("tester:")
    assert result.status == TaskResultStatus.RUNNING
    group.signal(signal.SIGINT)
    group.prints("SIGINT: stopping")
    result.refresh()
    assert result.status == TaskResultStatus.RUNNING
    gate.touch()
    assert group.wait() == 0
    result.refresh()
    assert (result.status, result.worker_ids) == (TaskResultStatus.SUCCESSFUL, [name])


def test_three_workers_at_once_run_every_job_once_and_leave(worker, evidence):
    ids = [tasks.sleep.enqueue(0.1).id for _ in range(12)]
    groups = [worker("--drain", "--concurrency", 1) for _ in range(3)]
    assert [group.wait() for group in groups] == [0, 0, 0]
    assert sorted(line[2] for line in evidence.read("start")) == sorted(ids)
    said = [group.text() for group in groups]
    assert all("nothing is due; leaving" in text for text in said)
    assert {sum(text.count(f"#{job_id}  ") for text in said) for job_id in ids} == {1}


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")
def test_a_drain_passes_by_a_row_that_somebody_has_locked(worker):
    held, free = tasks.add.enqueue(1, 0).id, tasks.add.enqueue(2, 0).id
    with holding(lambda: Job.objects.select_for_update().get(pk=held)):
        assert worker("--drain").wait() == 0
        assert (state(held), state(free)) == ("READY", "DONE")


def test_a_worker_serves_one_database_and_leaves_the_jobs_of_another(start, worker, tmp_path):
    here = tasks.add.enqueue(1, 0).id
    side = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "side.sqlite3")}
    side["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
    (tmp_path / "two_settings.py").write_text(
        f"from tests.settings_process import *\nDATABASES['side'] = {side}\nDATABASE_ROUTERS = []\n"
    )
    two = {"DJANGO_SETTINGS_MODULE": "two_settings", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    made = start("migrate", "jobqueue", "--database", "side", "--skip-checks", **two)
    assert made.wait() == 0, made.text()
    with closing(sqlite3.connect(side["NAME"])) as there:
        values = "('webhooks', 0, 0, '2020-01-01 00:00:00', '{\"n\": 1}')"
        there.execute(f"INSERT INTO job_queue(queue, status, priority, run_at, payload) VALUES {values}")
        there.commit()
        group = worker("--drain", "--database", "side", **two)
        assert group.wait() == 0, group.text()
        assert there.execute("SELECT status FROM job_queue").fetchall() == [(Job.Status.DONE,)]
    assert state(here) == "READY"
