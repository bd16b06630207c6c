"""manage.py jobs cancel --kill-after: it names the jobs beside before anything is done, and asks."""

import sys

import pytest
from django.core.management.base import CommandError

from jobqueue.models import AuditEvent, Job
from jobqueue.transitions import claim
from jobqueue.transitions.killing import kill_at
from tests.app import tasks
from tests.cli.helpers import Terminal, printed, refused
from tests.factories import job, make_job, row

pytestmark = pytest.mark.django_db


def crowd():
    """A running job, and two in the same process."""
    first = make_job()
    make_job()
    tasks.add.using(queue_name="q").enqueue(1, 2)
    claim("q", 3, worker="host:1.1")
    return first, *Job.objects.exclude(pk=first).order_by("pk").values_list("pk", flat=True)


def killed_at(job_id):
    found = job(job_id)
    return kill_at(found.options, found.fence)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_it_asks_with_the_names_of_the_jobs_beside(monkeypatch, capsys, answer):
    job_id, raw, task = crowd()
    before = row(job_id)
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    said = printed("cancel", str(job_id), "--kill-after", "10", status=0 if answer == "y" else 5)
    asked = capsys.readouterr().err
    assert asked == (
        f"In the same processes, killed too and run again: #{raw} (handler of q), #{task} {tasks.add.module_path}. "
        f"Kill the processes of #{job_id} after 10s? [y/N] "
    )
    if answer == "n":
        assert (said, row(job_id)) == ("nothing was changed\n", before)
        assert not AuditEvent.objects.exists()
    else:
        assert f"job {job_id} is canceled, or asked to stop" in said
        assert killed_at(job_id) is not None
        event = AuditEvent.objects.get()
        assert (event.verb, event.filters, event.reason) == (
            "cancel", {"job_ids": str(job_id)}, "kill_after_seconds=10",
        )  # fmt: skip


def test_yes_answers_and_without_a_terminal_it_is_needed(monkeypatch):
    job_id, *_ = crowd()
    monkeypatch.setattr(sys, "stdin", None)
    before = row(job_id)
    with pytest.raises(CommandError, match=r"killed too.* Nothing was changed: nobody can answer here"):
        printed("cancel", str(job_id), "--kill-after", "0")
    assert row(job_id) == before
    printed("cancel", str(job_id), "--kill-after", "500ms", "--yes")
    assert killed_at(job_id) is not None


def test_without_it_nothing_is_asked():
    job_id, *_ = crowd()
    printed("cancel", str(job_id))
    assert (job(job_id).cancel_requested_at is not None, killed_at(job_id)) == (True, None)


def test_a_name_of_a_task_cannot_write_to_the_terminal(monkeypatch, capsys):
    job_id, other, _ = crowd()
    Job.objects.filter(pk=other).update(task="evil\x1b[2J\n")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    printed("cancel", str(job_id), "--kill-after", "1h", status=5)
    said = capsys.readouterr().err
    assert "evil" in said
    assert "\x1b" not in said
    assert "\n" not in said


@pytest.mark.parametrize("time", ["-1", "soon", "nan", "9999d"])
def test_a_time_that_is_none_is_a_usage_error(capsys, time):
    assert "--kill-after" in refused(capsys, "jobs", "cancel", "1", f"--kill-after={time}")
