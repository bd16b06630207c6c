"""One job into the table."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import transaction

from jobqueue import enqueue
from jobqueue.exceptions import JobQueueError, UnknownQueue
from jobqueue.gates import rules
from jobqueue.models import Job
from jobqueue.transitions import claim
from tests.factories import job, make_due, now, row, seconds_from_now, undone

pytestmark = pytest.mark.django_db


def test_a_job_for_later_says_why_it_waits_until_it_runs():
    job_id = enqueue("q", 1, run_at=now() + timedelta(hours=1))
    assert job(job_id).wait_reason == "scheduled"
    make_due(job_id)
    (lease,) = claim("q", worker="w")
    assert (lease.job_id, job(job_id).wait_reason) == (job_id, None)


def test_an_enqueued_job_is_ready_due_and_untouched():
    job_id = enqueue("mail", {"to": "a"})
    made = job(job_id)
    assert isinstance(job_id, int)
    assert (made.queue, made.status, made.priority, made.payload) == ("mail", Job.Status.READY, 0, {"to": "a"})
    assert (made.attempts, made.max_attempts, made.fence, made.gate) == (0, 25, 0, 0)
    untouched = row(job_id)
    for column in (
        "result",
        "last_error",
        "locked_by",
        "lock_token",
        "locked_at",
        "lock_until",
        "dedupe_key",
        "finished_at",
    ):
        assert untouched[column] is None
    assert (untouched["task"], untouched["wait_reason"]) == (None, None)


def test_its_times_are_utc_now_by_the_databases_clock():
    made = job(enqueue("q", 1))
    for instant in (made.run_at, made.created_at, made.updated_at):
        assert instant.utcoffset() == timedelta(0)
        assert -60 < seconds_from_now(instant) <= 0.002


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        0,
        -1,
        1.5,
        "",
        "text",
        [],
        {},
        [1, {"a": None}],
        "é큐😀",
        {"": 0},
        2**63 - 1,
        2**64 - 1,
        -(2**63),
        "\\ ' \" % %s",
    ],
    ids=repr,
)
def test_a_payload_comes_back_as_it_was(payload):
    back = job(enqueue("q", payload)).payload
    assert back == payload
    assert type(back) is type(payload)


def test_30_levels_come_back_on_every_database():
    deep = 1
    for _ in range(30):
        deep = [deep]
    assert job(enqueue("q", deep)).payload == deep


def test_a_megabyte_comes_back_on_every_database():
    text = "😀" * 260_000
    assert job(enqueue("q", text)).payload == text


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9)), timezone(-timedelta(hours=8))])
def test_run_at_is_the_same_instant_whatever_its_zone(zone):
    instant = datetime(2031, 3, 4, 5, 6, 7, 891000, tzinfo=UTC)
    assert job(enqueue("q", 1, run_at=instant.astimezone(zone))).run_at == instant


def test_priority_and_max_attempts_are_stored():
    made = job(enqueue("q", 1, priority=-(2**31), max_attempts=2**31 - 1))
    assert (made.priority, made.max_attempts) == (-(2**31), 2**31 - 1)


def test_max_attempts_come_from_the_queue_then_from_the_settings(settings):
    settings.JOBQUEUE = {"MAX_ATTEMPTS": 9, "QUEUES": {"mail": {"MAX_ATTEMPTS": 3}}}
    assert [job(enqueue(q, 1)).max_attempts for q in ("mail", "other")] == [3, 9]
    assert job(enqueue("mail", 1, max_attempts=5)).max_attempts == 5


def test_a_job_goes_away_with_the_transaction_that_added_it():
    with undone():
        job_id = enqueue("q", 1)
    assert not Job.objects.filter(pk=job_id).exists()


def test_a_job_is_seen_by_the_transaction_that_added_it():
    with transaction.atomic():
        assert job(enqueue("q", 1)).queue == "q"


def test_ids_grow():
    ids = [enqueue("q", n) for n in range(5)]
    assert ids == sorted(set(ids))


def test_enqueue_is_one_statement(django_assert_num_queries, monkeypatch):
    """Besides the pauses and limits, which a process reads at most twice a second."""
    monkeypatch.setattr(rules, "RULES_SECONDS", 600.0)
    enqueue("q", 1)
    with django_assert_num_queries(1):
        enqueue("q", 1)


@pytest.mark.parametrize("tasks", [{"QUEUES": ["mail"]}])
def test_a_queue_is_unknown_only_if_the_list_of_queues_lacks_it(settings, tasks):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", **tasks}}
    enqueue("mail", 1)
    with pytest.raises(UnknownQueue, match="web") as caught:
        enqueue("web", 1)
    assert isinstance(caught.value, JobQueueError)
    assert isinstance(caught.value, ValueError)
    assert Job.objects.count() == 1


@pytest.mark.parametrize("queues", [{}, {"QUEUES": []}])
def test_without_a_list_any_queue_is_known(settings, queues):
    settings.TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", **queues}}
    enqueue("anything", 1)


def test_queue_names_are_kept_byte_for_byte():
    names = ["A", "a", "é", "e", "e ", "straße", "strasse", "\uff41"]
    for name in names:
        enqueue(name, 1)
    for name in names:
        assert list(Job.objects.filter(queue=name).values_list("queue", flat=True)) == [name]


def test_a_delayed_job_is_ready_but_not_due():
    later = enqueue("q", 1, run_at=now() + timedelta(hours=1))
    assert list(Job.objects.ready().values_list("pk", flat=True)) == [later]
    assert not Job.objects.due().exists()
