"""What the sub-commands of `jobs` change is in the audit, as what users of the admin change."""

import getpass

import pytest
from django.core.management import call_command
from django.db import DatabaseError

from jobqueue import enqueue, group
from jobqueue.models import AuditEvent
from tests.app import tasks
from tests.factories import make_in_state
from tests.marks import finding
from tests.retention.helpers import ended

pytestmark = pytest.mark.django_db


def jobs(*words):
    """The exit status of `manage.py jobs`."""
    try:
        call_command("jobs", *map(str, words))
    except SystemExit as stopped:
        return stopped.code
    return 0


def recorded():
    """Verb, filter, number of rows and reason of what is in the audit."""
    rows = AuditEvent.objects.order_by("pk")
    assert {(one.phase, one.due_at, one.program) for one in rows} <= {("done", None, "manage.py jobs")}
    return [(one.verb, one.filters, one.changed, one.reason) for one in rows]


@finding("O-M11")
@pytest.mark.parametrize(
    ("verb", "state"), [("cancel", "READY"), ("discard", "FAILED"), ("release", "PROCESSING"), ("retry", "FAILED")]
)
def test_the_jobs_that_a_verb_has_changed_are_recorded_with_the_user(verb, state):
    unchanged = make_in_state("DONE")
    changed = make_in_state(state)
    assert jobs(verb, changed, unchanged) == 5
    assert recorded() == [(verb, {"job_ids": str(changed)}, 1, "")]
    event = AuditEvent.objects.get()
    assert event.user_name == getpass.getuser()
    assert event.ended_at is not None


def test_what_changes_nothing_is_not_recorded():
    job_id = make_in_state("FAILED")
    jobs("cancel", make_in_state("DONE"))
    jobs("retry", job_id, "--dry-run")
    jobs("queues", "resume", "mail")
    jobs("queues")
    jobs("prune", "--dry-run")
    assert recorded() == []


@finding("O-M11")
def test_pauses_and_limits_are_recorded():
    jobs("queues", "pause", "mail", "--reason", "a broker is down", "--by", "ann")
    jobs("queues", "resume", "mail", "--by", "bob")
    jobs("queues", "limit", "mail", "--concurrency", "3", "--rate", "10/s")
    jobs("queues", "limit", "mail", "--clear")
    jobs("queues", "drain", "mail", "--reason", "a release")
    mail = {"queue": "mail"}
    assert recorded() == [
        ("pause", mail, 1, "a broker is down"),
        ("resume", mail, 1, ""),
        ("limit", mail, 1, "concurrency 3, rate 10/s"),
        ("limit", mail, 1, "clear"),
        ("drain", mail, 1, "a release"),
    ]
    assert list(AuditEvent.objects.order_by("pk").values_list("user_name", flat=True)[:2]) == ["ann", "bob"]


@finding("O-M11")
def test_redrives_and_their_ends_are_recorded():
    make_in_state("FAILED")
    jobs("retry", "--everything", "--yes")
    number = recorded()[0][1]["redrive"]
    jobs("redrives", "stop", number)
    assert recorded() == [("redrive", {"redrive": number}, 1, ""), ("stop", {"redrive": number}, 1, "")]


@finding("O-M11")
def test_a_canceled_group_a_job_that_was_added_and_a_deletion_are_recorded():
    with group("letters") as made:
        made.add(tasks.add, 1, 2)
    AuditEvent.objects.all().delete()
    jobs("groups", "cancel", made.id)
    jobs("enqueue", "tests.app.tasks.add", "--args", "[1, 2]")
    ended("DONE", 8)
    jobs("prune", "--state", "done=7d", "--yes", "--sleep", "0s")
    assert [(verb, changed) for verb, _filters, changed, _reason in recorded()] == [
        ("cancel", 1),
        ("enqueue", 1),
        ("prune", 1),
    ]
    assert recorded()[2][1] == {"state": "done"}


def test_what_was_done_is_told_if_it_cannot_be_recorded(monkeypatch, capsys):
    def broken(*_, **__):
        raise DatabaseError("the table is read-only")

    monkeypatch.setattr("jobqueue.bulk_verbs.record_done", broken)
    job_id = enqueue("mail", {})
    assert jobs("cancel", job_id) == 0
    told = capsys.readouterr()
    assert f"job {job_id} is canceled" in told.out
    assert told.err == "cancel: done, but not in the audit: the table is read-only\n"
