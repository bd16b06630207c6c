"""manage.py jobs explain: why a job does not run, a queue does not move, or due jobs wait."""

from pathlib import Path

import pytest
from django.utils import translation

from jobqueue import enqueue
from jobqueue.explain import explain_backlog, explain_job, explain_queue, workers
from jobqueue.flow import pause
from jobqueue.models import Worker
from tests.cli.helpers import printed, read_json, refused
from tests.factories import make_in_state, make_job
from tests.marks import committed

pytestmark = pytest.mark.django_db
KEYS = {"code", "text", "evidence", "next_step"}


def test_a_job_is_explained_with_evidence_and_the_next_step():
    job_id = make_job("mail")
    pause("mail", reason="the mail server moves", by="ann")
    lines = printed("explain", str(job_id)).splitlines()
    assert lines[0].startswith("paused: Queue mail has been paused for ")
    assert lines[0].endswith(" Reason: the mail server moves")
    assert "  queue      mail" in lines
    assert "  by         ann" in lines
    assert (
        "  next step  Ask ann, who has paused it, or end the pause: on the page of the queue, or with resume()."
        in lines
    )
    assert not [line for line in lines if line.split()[:1] == ["until"]], "what is not known is left out"
    assert lines.index("") < lines.index("no_worker: No worker is running, so no job of queue mail starts.")


def test_the_last_line_names_the_part_of_the_page_on_troubleshooting():
    waits, runs = make_job("mail"), make_in_state("PROCESSING")
    text = Path("docs/howto/troubleshooting.md").read_text()
    for words, heading in [
        ([str(waits)], "## My job does not run"),
        (["--queue", "mail"], "## My job does not run"),
        ([], "## My job does not run"),
        ([str(runs), "--no-stacks"], "## A job takes too long"),
    ]:
        assert f"\n{heading}\n" in text
        anchor = heading.removeprefix("## ").lower().replace(" ", "-")
        lines = printed("explain", *words).splitlines()
        assert lines[-2:] == ["", f"More: docs/howto/troubleshooting.md#{anchor}"]
    assert "troubleshooting" not in printed("explain", str(waits), "--json")


def test_a_queue_is_explained_by_its_name():
    make_job("mail")
    make_job("web")
    assert printed("explain", "--queue", "mail").startswith("no_worker: No worker is running, so no job of queue mail")


def test_without_arguments_all_due_jobs_are_explained():
    for queue in ("mail", "web"):
        make_job(queue)
    said = printed("explain")
    assert said.startswith(
        "no_worker: No worker is running, so no job starts. Due jobs that it holds up: 2, in mail, web"
    )
    assert "  queues          mail, web\n" in said


def test_without_any_job_that_is_said():
    assert printed("explain").startswith("ended: No job waits or runs")


def test_an_unknown_job_ends_with_1():
    lines = printed("explain", "77777", status=1).splitlines()
    assert lines == ["job 77777 does not exist", "", "More: docs/howto/troubleshooting.md#my-job-does-not-run"]
    assert read_json("explain", "77777", status=1) == {"job_id": 77777, "queue": None, "reasons": []}


def test_a_job_and_a_queue_at_once_are_refused(capsys):
    assert "not both" in refused(capsys, "jobs", "explain", "1", "--queue", "mail")


@pytest.mark.parametrize("words", [["x"], ["1.5"], ["--queue", "a,b"], ["--queue", ""]])
def test_what_is_no_id_or_name_is_refused(capsys, words):
    refused(capsys, "jobs", "explain", *words)


def test_json_has_what_python_returns():
    job_id = make_in_state("DONE")
    make_job("mail", run_at="2020-01-01T00:00:00Z")
    for words, found, names in (
        (["explain"], explain_backlog(), (None, None)),
        (["explain", "--queue", "mail"], explain_queue("mail"), (None, "mail")),
        (["explain", str(job_id)], explain_job(job_id), (job_id, None)),
    ):
        read = read_json(*words)
        assert set(read) == {"job_id", "queue", "reasons"}
        assert (read["job_id"], read["queue"]) == names
        assert [set(one) for one in read["reasons"]] == [KEYS] * len(found)
        assert [one["code"] for one in read["reasons"]] == [one.code for one in found]


def test_json_is_printed_without_verbosity_and_text_is_not():
    make_job()
    assert printed("explain", "-v", "0") == ""
    assert read_json("explain", "-v", "0")["reasons"]


def test_the_answer_is_english_in_any_language():
    make_job()
    english = printed("explain")
    with translation.override("ko"):
        assert printed("explain") == english


def test_the_tasks_of_the_project_are_known():
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "concurrency": 2, "version": "1"}
    Worker.objects.create(name="w", queues="*", **plain)
    job_id = enqueue("q", {"args": [1, 2], "kwargs": {}})
    assert [one["code"] for one in read_json("explain", str(make_job(task="tests.app.tasks.add")))["reasons"]] == [
        "workers_busy"
    ]
    assert read_json("explain", str(job_id))["reasons"]


def test_names_with_control_characters_do_not_reach_the_terminal():
    job_id = make_job(task="\x1b[31mred\n", wait_reason="x")
    assert "\x1b" not in printed("explain", str(job_id))


@committed
def test_a_worker_that_does_not_answer_is_waited_for_up_to_three_seconds_or_not_asked_at_all(monkeypatch):
    asked = []
    monkeypatch.setattr(workers, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(workers.worker_rows, "ask_stacks", lambda names, *, using: asked.append(names))
    monkeypatch.setattr(workers.worker_rows, "stacks_asked", lambda names, *, using: list(names))
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "concurrency": 1, "version": "1"}
    Worker.objects.create(name="owner", queues="*", **plain)
    job_id = make_in_state("PROCESSING")
    printed("explain", str(job_id), "--no-stacks")
    assert not asked
    assert printed("explain", str(job_id)).startswith("running: ")
    assert asked == [["owner"]]
