"""manage.py jobs enqueue: a job of a task is added as its code adds it, or refused with nothing written."""

import json
from datetime import timedelta
from functools import partial

import pytest
from django.core.management import CommandError

from jobqueue import task
from jobqueue.base.compat import tasks
from jobqueue.flow import drain
from jobqueue.models import Job
from jobqueue.testing import drain as work_off
from tests.cli.helpers import printed, read_json, refused
from tests.factories import now
from tests.gates import jobs

pytestmark = pytest.mark.django_db
ADD = "tests.app.tasks.add"

run, read = partial(printed, "enqueue"), partial(read_json, "enqueue")


def only_job():
    return Job.objects.get()


def test_a_job_of_a_task_is_added_with_its_arguments_and_runs():
    said = run(ADD, "--args", "[1]", "--kwargs", '{"b": 2}')
    job = only_job()
    assert said == f"job {job.pk} of task {ADD} was added to queue default\n"
    assert job.payload == {"args": [1], "kwargs": {"b": 2}}
    work_off()
    assert (only_job().status, only_job().result) == (Job.Status.DONE, 3)


def test_json_gives_the_id():
    found = read(ADD, "--args", "[1, 2]", "--queue", "mail")
    assert found == {"id": only_job().pk, "added": True, "task": ADD, "queue": "mail"}


def test_queue_priority_and_key_replace_those_of_the_task():
    run(ADD, "--args", "[1, 2]", "--queue", "mail", "--priority", "7", "--key", "k-1")
    job = only_job()
    assert (job.queue, job.priority, bytes(job.dedupe_key)) == ("mail", 7, b"k-1")


def test_in_counts_from_the_databases_clock():
    before = now()
    run(ADD, "--args", "[1, 2]", "--in", "10m")
    assert before + timedelta(minutes=10) <= only_job().run_at <= now() + timedelta(minutes=10)


def test_at_is_an_instant():
    run(ADD, "--args", "[1, 2]", "--at", "2190-01-31T18:00+09:00")
    assert only_job().run_at.isoformat() == "2190-01-31T09:00:00+00:00"


def test_a_key_that_is_held_adds_nothing_and_gives_the_job_that_holds_it():
    first = read(ADD, "--args", "[1, 2]", "--key", "k")["id"]
    again = run(ADD, "--args", "[3, 4]", "--key", "k")
    assert again == f"job {first} holds the dedupe key in queue default; no job was added\n"
    assert read(ADD, "--args", "[3, 4]", "--key", "k")["added"] is False
    assert only_job().payload["args"] == [1, 2]


def test_the_fields_of_the_task_hold(own_registry):
    made = task(queue_name="web", priority=3, max_attempts=2, dedupe_key=lambda key: f"o-{key}")(jobs.work)
    run(made.module_path, "--args", "[8]")
    job = only_job()
    assert (job.queue, job.priority, job.max_attempts, bytes(job.dedupe_key)) == ("web", 3, 2, b"o-8")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["tests.app.tasks.ad"], "no task is called 'tests.app.tasks.ad' (did you mean 'tests.app.tasks.add'?)"),
        (["os.system", "--args", '["true"]'], "no task is called 'os.system'"),
        ([ADD, "--args", "[1, 2"], "is not JSON"),
        ([ADD, "--args", "[" * 100_000], "is not JSON"),
        ([ADD, "--args", '{"a": 1}'], "is not a JSON list"),
        ([ADD, "--kwargs", "[1]"], "is not a JSON object"),
        ([ADD, "--args", "[NaN, 2]"], "Nothing was written"),
        ([ADD, "--args", "[1]"], "It takes add(a, b)"),
        ([ADD, "--kwargs", '{"a": 1, "bb": 2}'], "Nothing was written"),
        ([ADD, "--args", "[1, 2]", "--queue", "a,b"], "Nothing was written"),
        ([ADD, "--args", "[1, 2]", "--queue", ""], "Nothing was written"),
        ([ADD, "--args", "[1, 2]", "--key", ""], "Nothing was written"),
        ([ADD, "--args", "[1, 2]", "--key", "k" * 65], "Nothing was written"),
        ([ADD, "--args", "[1, 2]", "--priority", "high"], "invalid int value"),
        ([ADD, "--args", "[1, 2]", "--priority", "100000"], "Nothing was written"),
        ([ADD, "--args", "[1, 2]", "--in", "0"], "must be above 0"),
        ([ADD, "--args", "[1, 2]", "--at", "2190-01-31T18:00"], "is not a time with a UTC offset"),
        ([ADD, "--args", "[1, 2]", "--at", "tomorrow"], "is not a time with a UTC offset"),
        ([ADD, "--args", "[1, 2]", "--in", "1m", "--at", "2190-01-31T18:00Z"], "not allowed with"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence_and_nothing_is_written(words, why):
    assert why in refusal(*words)
    assert not Job.objects.exists()


def refusal(*words):
    """What it says; the status is that of wrong usage."""
    with pytest.raises(CommandError) as stopped:
        run(*words)
    # Django itself leaves with 2 for what the parser refuses.
    assert stopped.value.returncode in (1, 2)
    return str(stopped.value)


@pytest.mark.parametrize("words", [["tests.app.tasks.ad"], [ADD, "--args", "[1"], [ADD, "--args", "[1]"]])
def test_a_refusal_is_a_usage_error(capsys, words):
    assert refused(capsys, "jobs", "enqueue", *words)


def test_a_queue_that_the_settings_do_not_have_is_refused(settings):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["default"]}}
    assert "Nothing was written" in refusal(ADD, "--args", "[1, 2]", "--queue", "mial")
    assert not Job.objects.exists()


def test_a_queue_that_drains_takes_no_job():
    drain("default", reason="r")
    assert "draining" in refusal(ADD, "--args", "[1, 2]")
    assert not Job.objects.exists()


def test_a_task_of_another_backend_is_refused(settings, own_registry):
    dummy = f"{tasks.__name__}.backends.dummy.DummyBackend"
    settings.TASKS = settings.TASKS | {"dummy": {"BACKEND": dummy}}
    made = task(backend="dummy")(jobs.work)
    assert "has the backend 'dummy' of TASKS, which has no job table" in refusal(made.module_path)


def test_a_database_that_is_not_that_of_the_backend_is_refused(settings):
    settings.TASKS = {
        "default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "OPTIONS": {"DATABASE": "default"}, "QUEUES": []}
    }
    assert read(ADD, "--args", "[1, 2]", "--database", "default")["added"]
    assert "is not in DATABASES" in refusal(ADD, "--args", "[1, 2]", "--database", "elsewhere")


def test_verbosity_0_prints_nothing_but_json():
    assert run(ADD, "--args", "[1, 2]", "-v", "0") == ""
    assert json.loads(run(ADD, "--args", "[1, 2]", "-v", "0", "--json"))["added"] is True
