"""manage.py jobs unrunnable: what a deploy would leave waiting."""

import json
from io import StringIO

import pytest
from django.core.management import call_command

from jobqueue import task
from jobqueue.cli import explain
from tests.app import tasks
from tests.cli.helpers import printed, refused
from tests.factories import make_in_state, make_job, set_columns
from tests.memories import forget_tasks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


def run(*words):
    out = StringIO()
    call_command("jobs", "unrunnable", *words, stdout=out)
    return out.getvalue()


def stored(version, path="tests.app.tasks.greet"):
    job_id = int(tasks.greet.enqueue("ann", 1).id)
    payload = {"args": ["ann", 1], "kwargs": {}} | ({} if version is None else {"version": version})
    set_columns(job_id, payload=payload, task=path)
    return job_id


def test_what_this_code_runs_is_not_told():
    stored(None), stored(1), stored("two"), stored([2]), make_job("webhooks")
    make_in_state("DONE", "nobody", task="gone.away")
    assert run() == "0 waiting jobs cannot be run by this code\n"


def test_every_kind_is_told_with_its_reason():
    gone = [stored(None, "gone.away") for _ in range(3)]
    newer = stored(7)
    make_job("nobody-handles-this", payload=5)
    forget_tasks(["tests.app.tasks.greet"])
    third = task(version=3)(tasks.greet.func)
    third.upcaster(from_version=1)(lambda args, kwargs: (args, kwargs))
    first = stored(None)
    lines = run().splitlines()
    assert lines[:-1] == [
        f"3  default  gone.away  from #{gone[0]}  no such task",
        f"1  default  tests.app.tasks.greet  from #{first}  no upcaster from version 2",
        f"1  default  tests.app.tasks.greet version 7  from #{newer}  the task takes up to version 3",
        f"1  nobody-handles-this  (handler)  from #{newer + 1}  no @handler for this queue",
    ]
    assert lines[-1].startswith("6 waiting jobs")


def test_an_alias_can_be_run():
    task(aliases=["old.path"])(tasks.add.func)
    stored(None, "old.path")
    assert run().startswith("0 ")


def test_json_has_stable_keys_and_the_status_tells_on_request():
    job_id = stored(None, "gone.away")
    (kind,) = json.loads(run("--json"))["unrunnable"]
    assert kind == {
        "queue": "default",
        "task": "gone.away",
        "payload_version": 1,
        "jobs": 1,
        "first_id": job_id,
        "why": "no such task",
    }
    with pytest.raises(SystemExit) as stopped:
        run("--fail-if-any")
    assert stopped.value.code == 5
    out = StringIO()
    call_command("jobs", "-v0", "unrunnable", stdout=out)
    assert out.getvalue() == ""


def test_a_hostile_name_forges_no_line():
    stored(None, "gone\n9  x")
    assert len(run().splitlines()) == 2


@pytest.mark.parametrize("words", [["unheard-of"], ["unrunnable", "--database", "elsewhere"]])
def test_bad_usage_is_refused(capsys, words):
    refused(capsys, "jobs", *words)


def test_of_many_jobs_those_are_looked_at_that_are_claimed_first(monkeypatch):
    monkeypatch.setattr(explain, "SOME", 2)
    first = [stored(None, "gone.away") for _ in range(3)]
    assert run().splitlines() == [
        f"2  default  gone.away  from #{first[0]}  no such task",
        "2 of the jobs that are claimed first cannot be run by this code; --all looks at all",
    ]
    assert json.loads(run("--json"))["complete"] is False
    assert run("--all").splitlines()[-1] == "3 waiting jobs cannot be run by this code"
    assert json.loads(run("--all", "--json"))["complete"] is True


def test_a_gate_for_a_deploy_looks_at_all_of_them(monkeypatch):
    monkeypatch.setattr(explain, "SOME", 1)
    make_job("default", task="tests.app.tasks.greet", payload={"args": ["ann", 1], "kwargs": {}})
    stored(None, "gone.away")
    assert run().startswith("0 of the jobs")
    assert "gone.away" in printed("unrunnable", "--fail-if-any", status=5)
