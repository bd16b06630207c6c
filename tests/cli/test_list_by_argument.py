"""jobs list --arg: jobs by a value among their arguments, looked for in a part of the table at a time."""

from functools import partial

import pytest
from django.core.management import CommandError

from jobqueue import enqueue
from jobqueue.exceptions import PayloadError
from jobqueue.models import Job
from jobqueue.runs import arguments
from jobqueue.transitions import cancel
from tests.app import tasks
from tests.cli.helpers import printed, read_json
from tests.factories import make_job, make_jobs

pytestmark = pytest.mark.django_db

run, read = partial(printed, "list"), partial(read_json, "list")


def greeting(*args, **kwargs):
    return int(tasks.greet.enqueue(*args, **kwargs).id)


def found(*words):
    return [job["id"] for job in read(*words)["jobs"]]


@pytest.mark.parametrize(
    ("value", "text"),
    [(4711, "4711"), ("4711", "4711"), (True, "true"), (None, "null"), (1.5, "1.5"), ("서울", "서울"), ("a b", "a b")],
)
def test_a_value_is_found_at_any_depth(value, text):
    other = greeting("ann", 4712)
    ids = [greeting(value, 1), greeting("x", count=value), greeting("x", {"deep": [{"in": value}]})]
    assert found("--arg", text) == ids[::-1]
    assert other not in found("--arg", text)


def test_a_part_of_a_text_a_name_and_the_version_are_no_values():
    make_job(payload={"args": ["47110"], "kwargs": {"4711": 1}, "version": 4711}, task="app.tasks.x")
    assert found("--arg", "4711") == []


def test_1_is_not_true():
    job_id, _ = greeting("ann", 1), greeting("ann", True)
    assert found("--arg", "1") == [job_id]


def test_a_payload_that_cannot_be_read_is_passed_by(monkeypatch):
    job_id = greeting("ann", 1)
    make_job()
    monkeypatch.setattr(Job._meta.get_field("payload"), "from_db_value", lambda *_: PayloadError("no JSON"))
    assert found("--arg", "ann") == []
    monkeypatch.undo()
    assert found("--arg", "ann") == [job_id]


def test_the_payload_of_a_raw_row_is_searched():
    job_id = enqueue("q", {"order": 4711})
    assert found("--arg", "4711") == [job_id]


def test_what_is_shown_masked_is_not_found():
    job_id = greeting({"password": "hunter2", "city": "Seoul"}, 1)
    assert found("--arg", "hunter2") == []
    assert found("--arg", "Seoul") == [job_id]


def test_other_filters_hold_too():
    first, second = greeting("ann", 1), greeting("ann", 1)
    cancel(first)
    assert found("--arg", "ann", "--state", "canceled") == [first]
    assert found("--arg", "ann", "--state", "ready", "--task", "tests.app.tasks.greet") == [second]
    assert found("--arg", "ann", "--queue", "other") == []


def test_it_says_how_far_it_looked_and_goes_on_from_there(monkeypatch):
    monkeypatch.setattr(arguments, "SLICE", 2)
    monkeypatch.setattr(arguments, "ROWS_MAX", 2)
    job_id = greeting("ann", 1)
    newer = make_jobs(3)
    said = run("--arg", "ann")
    assert "looked through 2 jobs, back to " in said
    assert f"to go on, add --before {newer[1]}\n" in said
    assert read("--arg", "ann")["before"] == newer[1]
    said = run("--arg", "ann", "--before", str(newer[1]))
    assert f"#{job_id}  READY" in said


def test_a_page_that_is_full_goes_on_behind_its_last_job():
    ids = [greeting("ann", n) for n in range(3)]
    first = read("--arg", "ann", "--limit", "2")
    assert ([job["id"] for job in first["jobs"]], first["complete"]) == ([ids[2], ids[1]], False)
    rest = read("--arg", "ann", "--limit", "2", "--before", str(first["before"]))
    assert ([job["id"] for job in rest["jobs"]], rest["complete"], rest["before"]) == ([ids[0]], True, None)


def test_a_look_ends_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr(arguments, "SECONDS", -1.0)
    monkeypatch.setattr(arguments, "SLICE", 2)
    make_jobs(5)
    assert arguments.with_argument("x", arguments.Q(), most=1, using="default").number == 2


def test_without_jobs_nothing_is_found():
    assert not Job.objects.exists()
    assert run("--arg", "4711") == "no job matches\nlooked through 0 jobs; no older one is left\n"


@pytest.mark.parametrize("words", [("--before", "5"), ("--groups", "--arg", "1"), ("--arg", "1", "--before", "x")])
def test_options_that_do_not_go_together_are_refused(words):
    with pytest.raises(CommandError) as refused:
        run(*words)
    assert refused.value.returncode == 2
