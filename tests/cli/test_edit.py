"""manage.py jobs edit: a job that waits is changed, or refused with nothing written."""

import getpass
from datetime import timedelta
from functools import partial

import pytest
from django.core.management import CommandError

from jobqueue.models import AuditEvent, Job
from tests.app import tasks
from tests.cli.helpers import printed, read_json
from tests.factories import job, make_in_state, make_job, now, row

pytestmark = pytest.mark.django_db

run, read = partial(printed, "edit"), partial(read_json, "edit")


def audited():
    return [(one.verb, one.filters, one.user_name, one.reason) for one in AuditEvent.objects.order_by("pk")]


def greeting(*args, **kwargs):
    return int(tasks.greet.enqueue(*args, **kwargs).id)


def test_what_is_given_is_changed_told_and_recorded_with_the_user():
    job_id = greeting("ann", count=1)
    said = run(str(job_id), "--priority", "5", "--queue", "mail", "--args", '["ben"]', "--tags", "a,b")
    words = "queue default -> mail, priority 0 -> 5, args[0] changed, tags none -> a b"
    assert said == f"job {job_id} is changed: {words}\n"
    assert (job(job_id).priority, job(job_id).queue) == (5, "mail")
    assert job(job_id).payload == {"args": ["ben"], "kwargs": {"count": 1}}
    assert audited() == [("edit", {"job_ids": str(job_id)}, getpass.getuser(), words)]


def test_by_names_somebody_else():
    run(str(make_job()), "--priority", "5", "--by", "ann")
    assert [user for _, _, user, _ in audited()] == ["ann"]


def test_json_has_the_values_before_and_after_without_secrets():
    job_id = greeting("ann", count=1)
    found = read(str(job_id), "--kwargs", '{"count": {"password": "hunter2"}}', "--max-attempts", "3")
    assert found["changed"] is True
    assert found["changes"] == [
        {"field": "kwargs", "from": {"count": 1}, "to": {"count": {"password": "********"}}},
        {"field": "max_attempts", "from": 25, "to": 3},
    ]


def test_times_are_instants_times_from_now_and_words():
    job_id, before = make_job(), now()
    run(str(job_id), "--run-at", "10m", "--expires", "1h")
    assert before + timedelta(minutes=10) <= job(job_id).run_at <= now() + timedelta(minutes=10)
    assert job(job_id).expires_at == job(job_id).run_at + timedelta(hours=1)
    run(str(job_id), "--run-at", "2190-01-31T18:00+09:00", "--expires", "never")
    assert (job(job_id).run_at.isoformat(), job(job_id).expires_at) == ("2190-01-31T09:00:00+00:00", None)
    run(str(job_id), "--run-at", "now")
    assert job(job_id).run_at <= now()


@pytest.mark.parametrize("name", ["PROCESSING", "DONE", "FAILED", "CANCELED"])
def test_another_state_ends_with_5_and_is_not_recorded(name):
    job_id = make_in_state(name)
    said = printed("edit", str(job_id), "--priority", "5", status=5)
    assert said == f"job {job_id} was not changed: it does not wait, or does not exist\n"
    assert audited() == []


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--queue", "a,b"),
        ("--max-attempts", "0"),
        ("--args", "{}"),
        ("--args", "[1]"),
        ("--args", '["********"]'),
        ("--run-at", "2190-01-31T18:00"),
        ("--expires", "sometimes"),
        ("--tags", "x" * 1000),
    ],
)
def test_a_wrong_value_ends_with_2_and_nothing_is_written(words):
    job_id = greeting("ann", 1)
    before = row(job_id)
    with pytest.raises(CommandError) as refused:
        run(str(job_id), *words)
    assert refused.value.returncode == 2 or "argument" in str(refused.value)
    assert row(job_id) == before
    assert Job.objects.count() == 1
    assert audited() == []
