"""Refused with a sentence, before anything is written; the caller's transaction stays usable."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError, UnknownQueue
from jobqueue.explain import explain_job
from jobqueue.flow import breaker, clear_limit, drain, limits, pause, paused, resume, set_limit
from jobqueue.gates.rules import rules_from
from jobqueue.models import BreakerState, FlowRule
from tests.admin.helpers import root
from tests.app.tasks import greet
from tests.factories import make_job, now, state
from tests.gates.helpers import taken
from tests.memories import know_no_tasks

pytestmark = pytest.mark.django_db

ALMOST = greet.module_path.replace("greet", "gret")
NAIVE, LONG_AGO = datetime(2090, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)

CALLS = {
    "rate 10/x": (lambda: set_limit("q", rate="10/x"), InvalidValue, "10/s"),
    "rate without unit": (lambda: set_limit("q", rate="10"), InvalidValue, "10/s"),
    "rate 0/s": (lambda: set_limit("q", rate="0/s"), InvalidValue, "rate"),
    "rate 10/0s": (lambda: set_limit("q", rate="10/0s"), InvalidValue, "rate"),
    "rate -1/s": (lambda: set_limit("q", rate="-1/s"), InvalidValue, "rate"),
    "rate with an exponent": (lambda: set_limit("q", rate="1e3/s"), InvalidValue, "rate"),
    "rate in Arabic digits": (lambda: set_limit("q", rate="\u0661/s"), InvalidValue, "rate"),
    "rate beyond a year": (lambda: set_limit("q", rate="1/9999999d"), InvalidValue, "rate"),
    "endless rate": (lambda: set_limit("q", rate="9" * 400 + "/s"), InvalidValue, "rate"),
    "rate of a number": (lambda: set_limit("q", rate=10), InvalidType, "10/s"),
    "rate of True": (lambda: set_limit("q", rate=True), InvalidType, "rate"),
    "rate of False": (lambda: set_limit("q", rate=False), InvalidType, "rate"),
    "limit -1": (lambda: set_limit("q", concurrency=-1), InvalidValue, "concurrency"),
    "limit beyond all ints": (lambda: set_limit("q", concurrency=2**31), InvalidValue, "concurrency"),
    "limit of True": (lambda: set_limit("q", concurrency=True), InvalidType, "concurrency"),
    "limit of text": (lambda: set_limit("q", concurrency="5"), InvalidType, "concurrency"),
    "limit of a fraction": (lambda: set_limit("q", concurrency=1.5), InvalidType, "concurrency"),
    "limit of a pair": (lambda: set_limit("q", concurrency=(1, 5)), InvalidType, "concurrency"),
    "no limit at all": (lambda: set_limit("q"), InvalidValue, "concurrency"),
    "a wrong rate beside a right limit": (lambda: set_limit("q", concurrency=1, rate="fast"), InvalidValue, "rate"),
    "unknown task": (lambda: set_limit("q", task="app.no_such_task", concurrency=1), InvalidValue, "no_such_task"),
    "almost a task": (
        lambda: pause("q", task="tests.app.tasks.gret", reason="r"),
        InvalidValue,
        "tests.app.tasks.greet",
    ),
    "empty task": (lambda: pause("q", task="", reason="r"), InvalidValue, "task"),
    "task of a number": (lambda: pause("q", task=7, reason="r"), InvalidType, "task"),
    "task of a lone surrogate": (lambda: pause("q", task="\ud800", reason="r"), InvalidValue, "task"),
    "task with NUL": (lambda: pause("q", task="a\0", reason="r"), InvalidValue, "task"),
    "task that is a function": (lambda: pause("q", task=make_job, reason="r"), InvalidType, "task"),
    "resume of an unknown task": (lambda: resume("q", task="app.no_such_task"), InvalidValue, "no_such_task"),
    "clear_limit of an unknown task": (lambda: clear_limit("q", task="app.no"), InvalidValue, "no"),
    "empty reason": (lambda: pause("q", reason=""), InvalidValue, "reason"),
    "blank reason": (lambda: drain("q", reason=" \t "), InvalidValue, "reason"),
    "long reason": (lambda: pause("q", reason="x" * 201), InvalidValue, "200"),
    "reason of None": (lambda: pause("q", reason=None), InvalidType, "reason"),
    "reason with NUL": (lambda: pause("q", reason="a\x00b"), InvalidValue, "reason"),
    "reason with half a character": (lambda: pause("q", reason="\ud800"), InvalidValue, "reason"),
    "by with NUL": (lambda: pause("q", reason="r", by="\x00"), InvalidValue, "by"),
    "long by": (lambda: pause("q", reason="r", by="x" * 151), InvalidValue, "150"),
    "by of a number": (lambda: resume("q", by=5), InvalidType, "by"),
    "past until": (lambda: pause("q", reason="r", until=LONG_AGO), InvalidValue, "later"),
    "naive until": (lambda: pause("q", reason="r", until=NAIVE), InvalidValue, "naive"),
    "until of text": (lambda: pause("q", reason="r", until="tomorrow"), InvalidType, "until"),
    "until of a duration": (lambda: pause("q", reason="r", until=timedelta(hours=1)), InvalidType, "until"),
    "empty queue": (lambda: pause("", reason="r"), InvalidValue, "queue"),
    "queue with a comma": (lambda: set_limit("a,b", concurrency=1), InvalidValue, "queue"),
    "long queue": (lambda: drain("q" * 65, reason="r"), InvalidValue, "queue"),
    "queue of None": (lambda: resume(None), InvalidType, "queue"),
    "dependency with a space": (lambda: breaker("a b"), InvalidValue, "dependency"),
    "empty dependency": (lambda: breaker(""), InvalidValue, "dependency"),
    "dependency of None": (lambda: breaker(None), InvalidType, "dependency"),
    "breaker without reason": (lambda: breaker("stripe").open(""), InvalidValue, "reason"),
    "breaker until the past": (lambda: breaker("stripe").open("r", until=LONG_AGO), InvalidValue, "later"),
    "breaker until naive": (lambda: breaker("stripe").open("r", until=NAIVE), InvalidValue, "naive"),
}


def test_a_name_and_a_reason_may_be_as_long_as_their_columns():
    pause("q", reason="r" * 200, by="x" * 150)
    (found,) = paused()
    assert (len(found.reason), len(found.by)) == (200, 150)


@pytest.mark.parametrize(("call", "error", "words"), CALLS.values(), ids=CALLS)
def test_a_wrong_value_is_refused_and_nothing_is_written(call, error, words):
    with transaction.atomic():
        before = make_job()
        with pytest.raises(error, match=words) as caught:
            call()
        job_id = make_job()
    assert isinstance(caught.value, JobQueueError)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert not FlowRule.objects.exists()
    assert not BreakerState.objects.exists()
    assert (state(before), state(job_id)) == ("READY", "READY")
    assert taken() == [before, job_id]


def test_a_refusal_says_what_is_wrong_and_that_nothing_was_written():
    with pytest.raises(InvalidValue) as caught:
        set_limit("q", rate="10/x")
    assert "'10/x'" in str(caught.value)
    assert "Nothing was written" in str(caught.value)


def test_a_queue_that_the_settings_do_not_have_is_refused(settings):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["mail", "default"]}}
    calls = (
        lambda: pause("mial", reason="r"),
        lambda: drain("mial", reason="r"),
        lambda: resume("mial"),
        lambda: set_limit("mial", concurrency=1),
        lambda: clear_limit("mial"),
    )
    for call in calls:
        with pytest.raises(UnknownQueue, match="mial"):
            call()
    assert not FlowRule.objects.exists()
    pause("mail", reason="r")
    assert [one.queue for one in paused()] == ["mail"]


def test_a_pause_of_a_queue_that_was_removed_from_the_settings_can_be_ended(settings):
    pause("old", reason="r")
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": ["mail"]}}
    assert resume("old") is True
    assert paused() == []


def test_what_was_set_before_stays_when_a_call_is_refused():
    until = now() + timedelta(hours=1)
    pause("q", reason="first", until=until, by="ann")
    set_limit("q", concurrency=3)
    for call in (
        lambda: pause("q", reason=""),
        lambda: pause("q", reason="second", until=LONG_AGO),
        lambda: set_limit("q", concurrency=-1, rate="1/s"),
        lambda: set_limit("q", rate="1/x"),
    ):
        with pytest.raises(InvalidValue):
            call()
    (found,) = paused()
    assert (found.reason, found.by, found.until) == ("first", "ann", until)
    assert [one.concurrency for one in limits()] == [3]


def test_a_task_that_this_process_has_not_imported_yet_is_looked_for_in_the_apps(monkeypatch):
    """As in a shell, where nothing has imported the tasks."""
    know_no_tasks(monkeypatch)
    pause("q", task="tests.app.tasks.greet", reason="test")
    assert [one.task for one in paused()] == ["tests.app.tasks.greet"]


def test_a_rate_that_plain_sql_has_written_wrongly_stops_neither_claims_nor_pages(caplog):
    job_id = make_job()
    FlowRule.objects.create(queue="q", sets_rate=True, rate="often")
    assert explain_job(job_id)[0].code == "no_worker"
    client = root()
    for path in (f"job/{job_id}/change/", "flowrule/", "flowrule/queue/?queue=q", "metrics/"):
        assert client.get(f"/admin/jobqueue/{path}", follow=True).status_code == 200, path
    assert taken() == [job_id]
    assert rules_from(FlowRule.objects.annotate(now=UtcNow())).queues["q"].starts_nothing is False
    assert len([record for record in caplog.records if "the rate 'often' of all jobs" in record.getMessage()]) == 1
