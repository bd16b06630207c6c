"""manage.py jobs prune: count, delete, export and archive ended jobs."""

import json
import os
import stat
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import IntegrityError

from jobqueue.cli import output, prune
from jobqueue.db.clock import UtcNowPlus
from jobqueue.models import ArchivedJob, Job, JobAttempt, JobGroup, OutboxEvent, ResultExpiry
from jobqueue.retention import deletion, history
from tests.cli.helpers import refused
from tests.retention.helpers import ended, kept, left

pytestmark = pytest.mark.django_db(transaction=True)


def run(*words, sleep="0"):
    out = StringIO()
    call_command("jobs", "prune", "--sleep", sleep, *words, stdout=out)
    return out.getvalue()


def ids_of(text):
    return json.loads(text)["ids"]


def test_nothing_to_delete():
    young = ended("DONE", 1)
    assert run("--yes") == "0 ended jobs were deleted\n"
    assert left() == [young]


def test_counts_by_queue_and_state(settings):
    kept(settings, done="7d", failed="30d")
    for queue in ("mail", "mail", "a much longer name"):
        ended("DONE", 8, queue)
    ended("FAILED", 31, "mail", attempts=1)
    ended("DONE", 6)
    assert run("--yes").splitlines() == [
        "1  done    a much longer name",
        "2  done    mail",
        "1  failed  mail",
        "4 ended jobs were deleted",
    ]
    assert Job.objects.count() == 1
    assert not JobAttempt.objects.exists()


def test_old_groups_are_deleted_with_the_old_rows_of_other_tables():
    JobGroup.objects.create(state=JobGroup.State.ENDED, ended_at=UtcNowPlus(-400 * 86_400))
    assert run("--yes") == "0 ended jobs were deleted\n1 old row of other tables was deleted\n"
    assert json.loads(run("--yes", "--json"))["other_rows"]["groups"] == 0
    assert not JobGroup.objects.exists()


def test_a_dry_run_names_the_jobs_that_are_deleted_and_changes_nothing(settings):
    kept(settings, done={"AGE": "7d", "KEEP": 4}, failed="7d", canceled="1h")
    for days in range(1, 12):
        for state in ("DONE", "FAILED", "CANCELED"):
            ended(state, days, due_days=days if days % 3 else days - 5, priority=days % 2)
    before = left()
    named = ids_of(run("--dry-run", "--list", "--json", "--batch", "2"))
    assert left() == before
    assert sorted(ids_of(run("--list", "--json", "--yes", "--batch", "3"))) == sorted(named)
    assert left() == [job_id for job_id in before if job_id not in named]
    assert 0 < len(named) < len(before)
    assert run("--dry-run") == "0 ended jobs would be deleted\n"


def test_the_states_that_are_given_count_instead_of_the_setting(settings):
    kept(settings, done="1h", failed="1h")
    stays = [ended("DONE", 1), ended("FAILED", 3)]
    ended("DONE", 3)
    assert run("--state", "done=2d", "--yes").splitlines()[-1] == "1 ended job was deleted"
    assert left() == stays


def test_only_the_queues_that_are_given(settings):
    kept(settings, done="1d")
    stays = ended("DONE", 2, "a")
    for queue in ("b", "c"):
        ended("DONE", 2, queue)
    run("--queue", "b", "--queue", "c", "--yes")
    assert left() == [stays]


def test_it_asks_with_the_number(settings, monkeypatch):
    kept(settings, done="7d")
    asked = []

    def answer(question, *, yes):
        asked.append(question)
        return len(asked) > 1

    monkeypatch.setattr(prune, "confirm", answer)
    ended("DONE", 8), ended("DONE", 9)
    with pytest.raises(SystemExit) as stopped:
        run()
    assert (stopped.value.code, asked) == (5, ["Delete 2 ended jobs, and old rows of other tables?"])
    assert Job.objects.count() == 2
    run()
    assert not Job.objects.exists()


def test_without_a_terminal_it_needs_yes(monkeypatch, capsys):
    monkeypatch.setattr(output.sys, "stdin", StringIO("y\n"))
    job_id = ended("DONE", 8)
    assert "pass --yes" in refused(capsys, "jobs", "prune")
    assert left() == [job_id]


def test_after_its_time_it_stops_and_says_that_more_are_left(settings):
    kept(settings, done="7d")
    for _ in range(5):
        ended("DONE", 8)
    with pytest.raises(SystemExit) as stopped:
        run("--max-time", "1ms", "--batch", "1", "--yes", sleep="2ms")
    assert stopped.value.code == 5
    # It may be over before the first look.
    assert Job.objects.count() in (4, 5)
    run("--yes")
    assert not Job.objects.exists()


def test_a_dry_run_stops_after_its_time_too(settings, monkeypatch):
    kept(settings, done="7d")
    ended("DONE", 8)
    monkeypatch.setattr(prune, "_clock", lambda given: lambda: given["max_time"] is not None)
    with pytest.raises(SystemExit) as exit:
        run("--dry-run", "--max-time", "1s")
    assert exit.value.code == 5
    assert run("--dry-run").endswith("1 ended job would be deleted\n")


def test_without_a_filter_it_cleans_the_other_tables_too(settings):
    event = OutboxEvent.objects.create(topic="t", payload={}, processed_at=UtcNowPlus(-30 * 86_400))
    assert run("--state", "done=1d", "--yes") == "0 ended jobs were deleted\n"
    assert OutboxEvent.objects.filter(pk=event.pk).exists()
    assert run("--yes").splitlines() == ["0 ended jobs were deleted", "1 old row of other tables was deleted"]
    assert not OutboxEvent.objects.exists()


@pytest.fixture
def expired():
    """The id of a job that ended yesterday, and whose result has expired."""
    job_id = ended("DONE", 1)
    ResultExpiry.objects.create(job_id=job_id, ttl_seconds=60, expires_at=UtcNowPlus(-1))
    return job_id


def test_expired_results_are_counted_named_and_deleted_as_jobs(expired):
    assert ids_of(run("--dry-run", "--list", "--json")) == [expired]
    assert ResultExpiry.objects.exists()
    assert run("--yes").splitlines()[-1] == "1 ended job was deleted"
    assert left() == []
    assert not ResultExpiry.objects.exists()


def test_expired_results_stay_if_only_some_jobs_are_to_be_deleted(expired):
    run("--state", "failed=1d", "--yes")
    run("--queue", "q", "--yes")
    assert left() == [expired]


class TestTheExport:
    def test_has_a_line_for_each_job_with_its_attempts(self, settings, tmp_path):
        kept(settings, failed="7d")
        first = ended("FAILED", 8, attempts=2, dedupe_key=b"\xff\x00", last_error="b\u00f6\u00f6m", options={"a": 1})
        second = ended("FAILED", 9)
        file = tmp_path / "jobs.jsonl"
        file.write_text('{"earlier": true}\n')
        run("--export", str(file), "--yes", "--batch", "1")
        earlier, *lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert earlier == {"earlier": True}
        found = {line["id"]: line for line in lines}
        assert {*found} == {first, second}
        assert (found[first]["status"], found[first]["last_error"]) == ("failed", "b\u00f6\u00f6m")
        assert (found[first]["dedupe_key"], found[first]["options"]) == ("ff00", {"a": 1})
        assert [one["attempt"] for one in found[first]["failures"]] == [1, 2]
        assert found[second]["failures"] is None
        assert left() == []

    def test_has_no_secrets_and_only_its_owner_can_read_it(self, settings, tmp_path):
        kept(settings, failed="7d")
        ended("FAILED", 8, attempts=1, last_error="no mysql://a:hunter2@db", payload={"password": "hunter2"})
        file = tmp_path / "jobs.jsonl"
        run("--export", str(file), "--yes")
        (line,) = file.read_text().splitlines()
        assert json.loads(line)["payload"] == {"password": "********"}
        assert "hunter2" not in line
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def test_has_the_jobs_before_they_are_gone(self, settings, tmp_path, monkeypatch):
        kept(settings, done="7d")
        job_id, file = ended("DONE", 8), tmp_path / "jobs.jsonl"

        fsync = os.fsync

        def killed(number):
            fsync(number)
            raise RuntimeError("killed")

        monkeypatch.setattr(history.os, "fsync", killed)
        with pytest.raises(RuntimeError):
            run("--export", str(file), "--yes")
        assert left() == [job_id]
        assert json.loads(file.read_text())["id"] == job_id

    def test_begins_a_new_line_behind_one_that_a_killed_process_has_left(self, settings, tmp_path):
        kept(settings, done="7d")
        job_id, file = ended("DONE", 8), tmp_path / "jobs.jsonl"
        file.write_text('{"id": 1, "que')
        run("--export", str(file), "--yes")
        assert json.loads(file.read_text().splitlines()[1])["id"] == job_id

    def test_has_no_job_whose_deletion_was_refused(self, settings, tmp_path, monkeypatch):
        kept(settings, done="7d")
        jobs = [ended("DONE", 8) for _ in range(3)]
        file, delete = tmp_path / "jobs.jsonl", deletion._delete_rows

        def refused(ids, using):
            if jobs[1] in ids:
                raise IntegrityError("a row of the project refers to it")
            delete(ids, using)

        monkeypatch.setattr(deletion, "_delete_rows", refused)
        run("--export", str(file), "--yes")
        assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == [jobs[0], jobs[2]]
        assert left() == [jobs[1]]

    def test_to_a_disk_that_is_full_deletes_no_more(self, settings, capsys):
        kept(settings, done="7d")
        job_id = ended("DONE", 8)
        with pytest.raises(SystemExit) as stopped:
            run("--export", "/dev/full", "--yes")
        assert stopped.value.code == 1
        assert "No space left on device; the other jobs are not deleted" in capsys.readouterr().err
        assert left() == [job_id]

    def test_and_the_archive_both_get_the_jobs(self, settings, tmp_path):
        kept(settings, done={"AGE": "7d", "ARCHIVE": True})
        job_id, file = ended("DONE", 8), tmp_path / "jobs.jsonl"
        run("--export", str(file), "--yes")
        assert json.loads(file.read_text())["id"] == job_id
        assert ArchivedJob.objects.filter(pk=job_id).exists()

    def test_to_a_file_that_cannot_be_written_deletes_nothing(self, tmp_path, capsys):
        job_id = ended("DONE", 8)
        assert "No such file or directory. Nothing was deleted" in refused(
            capsys, "jobs", "prune", "--export", str(tmp_path / "no" / "file"), "--yes"
        )
        assert left() == [job_id]


def test_the_archive_gets_the_jobs(settings):
    kept(settings, done="7d")
    job_id = ended("DONE", 8)
    assert run("--archive", "--yes").splitlines()[-1] == "1 ended job was archived"
    assert list(ArchivedJob.objects.values_list("pk", flat=True)) == [job_id]
    assert left() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--state", "ready=1d"], "'ready=1d' is not STATE=AGE; states are done, failed, canceled"),
        (["--state", "done"], "'done' is not STATE=AGE"),
        (["--state", "done=soon"], "'soon' is not a duration"),
        (["--state", "done=-1d"], "'-1d' is not a duration"),
        (["--batch", "0"], "'0' is not a whole number from 1 to 10000"),
        (["--max-time", "0"], "the duration must be above 0"),
        (["--queue", "a\x00b"], "queue"),
        (["--export", ""], "--export needs the name of a file. Nothing was deleted."),
        (["--state", "done=7d,done=0"], "'done' is given twice"),
    ],
)
def test_wrong_usage_is_refused(capsys, words, message):
    job_id = ended("DONE", 8)
    assert message in refused(capsys, "jobs", "prune", "--yes", *words)
    assert left() == [job_id]
