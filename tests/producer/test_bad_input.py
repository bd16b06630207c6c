"""Refused at enqueue: a clear error, nothing written, the caller's transaction usable."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from django.db import transaction

from jobqueue import enqueue, enqueue_many
from jobqueue.counter import ShardedCounter
from jobqueue.exceptions import InvalidValue, JobQueueError
from jobqueue.fencing import fence_of
from jobqueue.idempotency import once
from jobqueue.inspect import lock_footprint
from jobqueue.locks import lease_lock, mutex, named_lock
from jobqueue.models import Job
from jobqueue.outbox import publish
from jobqueue.transactions import retry_transaction
from jobqueue.transitions import (
    ack_many,
    cancel,
    claim,
    discard,
    extend_held,
    fail,
    fail_many,
    heartbeat,
    reap,
    release_held,
    resume,
    retry,
    snooze,
)
from tests.app.tasks import add
from tests.factories import claim_one, make_job, make_jobs, row, state

pytestmark = pytest.mark.django_db

CIRCLE: list = []
CIRCLE.append(CIRCLE)

CALLS = {
    "NaN": (("q", {"a": float("nan")}), {}, r"payload\['a'\]"),
    "infinity": (("q", float("inf")), {}, "payload"),
    "NUL": (("q", ["a\x00"]), {}, r"payload\[0\]"),
    "surrogate": (("q", "\ud800"), {}, "payload"),
    "huge int": (("q", 2**64), {}, "payload"),
    "bytes": (("q", b"x"), {}, "payload"),
    "Decimal": (("q", Decimal(1)), {}, "payload"),
    "datetime": (("q", datetime(2026, 1, 1, tzinfo=UTC)), {}, "payload"),
    "non-str key": (("q", {1: 2}), {}, "payload"),
    "key beyond printing": (("q", {10**5000: 2}), {}, "payload"),
    "circular": (("q", CIRCLE), {}, "payload"),
    "too large": (("q", "x" * 1_048_577), {}, "1048576"),
    "too large in bytes": (("q", "é" * 524_288), {}, "1048576"),
    "empty queue": (("", 1), {}, "queue"),
    "long queue": (("q" * 65, 1), {}, "64"),
    "queue with a comma": (("a,b", 1), {}, "queue"),
    "queue of None": ((None, 1), {}, "queue"),
    "naive run_at": (("q", 1), {"run_at": datetime(2030, 1, 1)}, "naive"),
    "run_at of text": (("q", 1), {"run_at": "tomorrow"}, "run_at"),
    "run_at of a date": (("q", 1), {"run_at": date(2030, 1, 1)}, "run_at"),
    "run_at too far": (("q", 1), {"run_at": datetime(9999, 12, 31, tzinfo=UTC)}, "run_at"),
    "priority of text": (("q", 1), {"priority": "high"}, "priority"),
    "priority of None": (("q", 1), {"priority": None}, "priority"),
    "priority of float": (("q", 1), {"priority": 1.0}, "priority"),
    "priority too large": (("q", 1), {"priority": 2**31}, "priority"),
    "priority too small": (("q", 1), {"priority": -(2**31) - 1}, "priority"),
    "priority beyond printing": (("q", 1), {"priority": 10**5000}, "priority"),
    "attempts beyond printing": (("q", 1), {"max_attempts": 10**5000}, "max_attempts"),
    "no attempts": (("q", 1), {"max_attempts": 0}, "max_attempts"),
    "negative attempts": (("q", 1), {"max_attempts": -1}, "max_attempts"),
    "bool attempts": (("q", 1), {"max_attempts": True}, "max_attempts"),
    "empty key": (("q", 1), {"dedupe_key": ""}, "dedupe_key"),
    "long key": (("q", 1), {"dedupe_key": "k" * 65}, "64"),
    "key of int": (("q", 1), {"dedupe_key": 5}, "dedupe_key"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_input_names_the_place_writes_nothing_and_leaves_the_transaction_usable(name):
    args, kwargs, words = CALLS[name]
    with transaction.atomic():
        enqueue("q", "before")
        with pytest.raises(JobQueueError, match=words) as caught:
            enqueue(*args, **kwargs)
        enqueue("q", "after")
    assert isinstance(caught.value, (TypeError, ValueError))
    assert [job.payload for job in Job.objects.order_by("pk")] == ["before", "after"]


@pytest.mark.parametrize("name", [name for name in CALLS if "key" not in name or name == "non-str key"])
def test_enqueue_many_refuses_the_same(name):
    (queue, payload), kwargs, words = CALLS[name]
    with transaction.atomic():
        with pytest.raises(
            JobQueueError, match=words.replace("payload", r"payloads\[0\]") if words.startswith("payload") else words
        ):
            enqueue_many(queue, [payload], **kwargs)
        enqueue("q", "after")
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    "argument",
    [float("nan"), "a\x00", "\ud800", 2**64, Decimal(1), CIRCLE, "x" * 1_048_577, {1, 2}, object()],
    ids=ascii,
)
def test_a_tasks_bad_arguments_write_nothing(argument):
    with transaction.atomic():
        with pytest.raises(JobQueueError) as caught:
            add.enqueue(argument, 1)
        add.enqueue(1, 1)
    assert isinstance(caught.value, (TypeError, ValueError))
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    "kwargs",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": "5"},
        {"limit": 1.5},
        {"worker": ""},
        {"worker": "w" * 129},
        {"worker": None},
        {"worker": "a\nb"},
        {"lease_seconds": 0},
        {"lease_seconds": -1},
        {"lease_seconds": float("nan")},
        {"lease_seconds": 1e12},
        {"lease_seconds": 10**400},
        {"lease_seconds": "60"},
        {"lease_seconds": None},
    ],
    ids=str,
)
def test_a_bad_claim_takes_nothing(kwargs):
    make_job()
    with pytest.raises(JobQueueError) as caught:
        claim("q", **{"worker": "w", **kwargs})
    assert isinstance(caught.value, (TypeError, ValueError))
    assert not Job.objects.leased().exists()


@pytest.mark.parametrize("name", ["limit", "lease_seconds"])
def test_a_claim_with_a_number_that_cannot_be_printed_is_refused(name):
    with pytest.raises(InvalidValue, match=name):
        claim("q", **{"worker": "w", name: 10**5000})


@pytest.mark.parametrize("limit", [0, -1, 1.5, "5", None, True])
def test_a_bad_reap_limit_is_refused(limit):
    with pytest.raises(JobQueueError):
        reap(limit)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12, "5"])
def test_a_bad_delay_changes_nothing(seconds):
    make_job()
    lease = claim_one()
    before = row(lease.job_id)
    for call in (
        lambda: fail(lease, error="x", delay_seconds=seconds),
        lambda: fail_many([lease], error="x", delay_seconds=seconds),
        lambda: snooze(lease, delay_seconds=seconds),
        lambda: heartbeat(lease, lease_seconds=seconds),
    ):
        with pytest.raises(JobQueueError):
            call()
    assert row(lease.job_id) == before


@pytest.mark.parametrize("error", [None, 42, ValueError, b"x", ["x"]])
def test_an_error_that_is_neither_text_nor_exception_uses_no_attempt(error):
    make_job()
    lease = claim_one()
    before = row(lease.job_id)
    for call in (lambda: fail(lease, error=error), lambda: fail_many([lease], error=error)):
        with pytest.raises(JobQueueError, match="error must be"):
            call()
    assert row(lease.job_id) == before


@pytest.mark.parametrize("results", [[], [1], [1, 2, 3]])
def test_an_ack_of_two_leases_wants_two_results(results):
    make_jobs(2)
    leases = claim("q", 2, worker="w")
    with pytest.raises(JobQueueError, match="2 leases") as caught:
        ack_many(leases, results=results)
    assert isinstance(caught.value, ValueError)
    assert {state(lease.job_id) for lease in leases} == {"PROCESSING"}


@pytest.mark.parametrize("verb", [cancel, retry, discard])
@pytest.mark.parametrize("job_id", ["x", "", "1 OR 1=1", None, 1.5, b"1"])
def test_a_malformed_job_id_is_refused(verb, job_id):
    with pytest.raises(JobQueueError):
        verb(job_id)


@pytest.mark.parametrize("verb", [cancel, retry, discard])
@pytest.mark.parametrize("job_id", [0, -1, 2**63 - 1, 2**63, 2**64, 10**19, 2**200, "99999999999999999999"])
def test_a_job_id_that_does_not_exist_is_false(verb, job_id):
    assert verb(job_id) is False


@pytest.mark.parametrize("payloads", [None, 5, "ab", b"ab", bytearray(b"ab"), {"a": 1}], ids=ascii)
def test_payloads_that_are_no_list_write_nothing(payloads):
    with pytest.raises(JobQueueError, match="payloads") as caught:
        enqueue_many("q", payloads)
    assert isinstance(caught.value, TypeError)
    assert not Job.objects.exists()


@pytest.mark.parametrize("keys", [5, "ab", b"ab", {"a", "b"}, {"a": 1, "b": 2}, iter("ab")], ids=ascii)
def test_dedupe_keys_that_are_no_list_write_nothing(keys):
    with pytest.raises(JobQueueError, match="dedupe_keys") as caught:
        enqueue_many("q", [1, 2], dedupe_keys=keys)
    assert isinstance(caught.value, TypeError)
    assert not Job.objects.exists()


ON_ANOTHER_DATABASE = {
    "enqueue": lambda using: enqueue("q", 1, using=using),
    "enqueue with a key": lambda using: enqueue("q", 1, dedupe_key="k", using=using),
    "enqueue_many": lambda using: enqueue_many("q", [1, 2], using=using),
    "claim": lambda using: claim("q", worker="w", using=using),
    "reap": lambda using: reap(using=using),
    "cancel": lambda using: cancel(1, using=using),
    "release_held": lambda using: release_held(1, using=using),
    "extend_held": lambda using: extend_held(1, 60, using=using),
    "resume": lambda using: resume("q", "k", using=using),
    "enqueue_many of nothing": lambda using: enqueue_many("q", [], using=using),
    "mutex": lambda using: mutex("k", using=using),
    "lease_lock": lambda using: lease_lock("k", 5, using=using),
    "named_lock": lambda using: named_lock("k", 0, using=using),
    "once": lambda using: once("k", ttl_seconds=5, using=using).__enter__(),
    "publish": lambda using: publish("t", 1, using=using),
    "lock_footprint": lambda using: lock_footprint(using=using).__enter__(),
    "counter": lambda using: ShardedCounter("k", using=using),
    "retry_transaction": lambda using: retry_transaction(using=using)(int)(),
}


@pytest.mark.parametrize("using", ["nowhere", "", 5, b"default"])
@pytest.mark.parametrize("call", ON_ANOTHER_DATABASE)
def test_an_alias_that_is_no_database_is_refused(call, using):
    with pytest.raises(JobQueueError, match="database") as caught:
        ON_ANOTHER_DATABASE[call](using)
    assert isinstance(caught.value, (TypeError, ValueError))
    assert not Job.objects.exists()


@pytest.mark.parametrize("call", [lambda n: mutex(n), lambda n: once(n, ttl_seconds=5).__enter__(), fence_of])
def test_an_int_that_cannot_be_printed_is_refused_by_the_toolkit(call):
    with pytest.raises(JobQueueError) as caught, transaction.atomic():
        call(10**5000)
    assert isinstance(caught.value, ValueError)
