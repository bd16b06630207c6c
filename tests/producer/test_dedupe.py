"""A dedupe key is held while its job lives and DEDUPE_SECONDS after its end."""

from functools import partial

import pytest
from django.db import transaction

from jobqueue import enqueue
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.fields import Encoded
from jobqueue.models import Job
from jobqueue.producer.enqueueing import add_many
from jobqueue.producer.insert import NewJob
from jobqueue.transitions import ack, cancel, claim, fail, retry
from tests.factories import claim_one, job, lease_with, make_in_state, row, set_columns, state, undone
from tests.marks import finding

pytestmark = pytest.mark.django_db


def finish(job_id, name):
    if name == "CANCELED":
        cancel(job_id)
    else:
        lease = claim_one()
        ack(lease) if name == "DONE" else fail(lease_with(lease, max_attempts=1), error="x")
    assert state(job_id) == name


def test_a_second_enqueue_gives_the_existing_job_and_changes_nothing():
    first = enqueue("q", 1, dedupe_key="k")
    before = row(first)
    assert enqueue("q", 2, dedupe_key="k", priority=9) == first
    assert row(first) == before
    assert Job.objects.count() == 1


def test_a_running_job_holds_its_key():
    first = enqueue("q", 1, dedupe_key="k")
    claim("q", worker="w")
    assert enqueue("q", 2, dedupe_key="k") == first


@pytest.mark.parametrize("name", ["DONE", "FAILED", "CANCELED"])
def test_a_finished_job_holds_its_key_for_dedupe_seconds(name):
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, name)
    set_columns(first, finished_at=UtcNowPlus(-86_390))
    assert enqueue("q", 2, dedupe_key="k") == first
    assert Job.objects.count() == 1


@pytest.mark.parametrize("name", ["DONE", "FAILED", "CANCELED"])
def test_later_the_key_goes_to_a_new_job(name):
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, name)
    set_columns(first, finished_at=UtcNowPlus(-86_410))
    second = enqueue("q", 2, dedupe_key="k")
    assert second != first
    assert (row(first)["dedupe_key"], bytes(row(second)["dedupe_key"])) == (None, b"k")
    assert enqueue("q", 3, dedupe_key="k") == second
    assert state(first) == name


def test_the_hold_is_a_setting(settings):
    settings.JOBQUEUE = {"DEDUPE_SECONDS": 10}
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, "DONE")
    assert enqueue("q", 2, dedupe_key="k") == first
    set_columns(first, finished_at=UtcNowPlus(-11))
    assert enqueue("q", 2, dedupe_key="k") != first


def test_none_holds_until_pruned(settings):
    settings.JOBQUEUE = {"DEDUPE_SECONDS": None}
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, "DONE")
    set_columns(first, finished_at=UtcNowPlus(-10 * 366 * 86_400))
    assert enqueue("q", 2, dedupe_key="k") == first
    Job.objects.all().delete()
    assert enqueue("q", 2, dedupe_key="k") != first


@pytest.mark.parametrize("seconds", [0, 1e9, 1e11, 1e15])
def test_any_accepted_hold_works_at_the_second_enqueue(settings, seconds):
    from jobqueue.conf import read

    if read({"DEDUPE_SECONDS": seconds})[1]:
        return
    settings.JOBQUEUE = {"DEDUPE_SECONDS": seconds}
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, "DONE")
    set_columns(first, finished_at=UtcNowPlus(-60))
    assert (enqueue("q", 2, dedupe_key="k") == first) is (seconds > 60)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A", "a"),
        ("é", "e"),
        ("k", "k "),
        ("straße", "strasse"),
        ("k", " k"),
        ("\uff4b", "k"),
        ("e\u0301", "é"),
        (b"k", b"k\x00"),
        ("ß", "ss"),
    ],
)
def test_keys_are_compared_byte_for_byte(one, other):
    first, second = enqueue("q", 1, dedupe_key=one), enqueue("q", 2, dedupe_key=other)
    assert first != second
    assert (enqueue("q", 3, dedupe_key=one), enqueue("q", 3, dedupe_key=other)) == (first, second)


def test_a_str_key_and_its_utf8_bytes_are_one_key():
    assert enqueue("q", 1, dedupe_key="é") == enqueue("q", 2, dedupe_key="é".encode())


def test_64_bytes_of_anything_are_a_key():
    key = bytes(range(192, 256))
    first = enqueue("q", 1, dedupe_key=key)
    assert enqueue("q", 1, dedupe_key=key) == first
    assert enqueue("q", 1, dedupe_key=key[:-1]) != first
    assert bytes(row(first)["dedupe_key"]) == key


def test_each_queue_has_its_own_keys():
    assert len({enqueue(queue, 1, dedupe_key="k") for queue in ("q", "Q", "q ", "r")}) == 4


def test_jobs_without_a_key_never_collide():
    assert enqueue("q", 1) != enqueue("q", 1)


def test_the_callers_transaction_stays_usable():
    first = enqueue("q", 1, dedupe_key="k")
    with transaction.atomic():
        enqueue("q", 0)
        assert enqueue("q", 2, dedupe_key="k") == first
        enqueue("q", 3)
    assert Job.objects.count() == 3


def test_a_rolled_back_job_does_not_hold_its_key():
    with undone():
        enqueue("q", 1, dedupe_key="k")
    assert job(enqueue("q", 2, dedupe_key="k")).payload == 2


def test_retry_is_refused_while_another_live_job_has_the_key():
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, "FAILED")
    set_columns(first, finished_at=UtcNowPlus(-90_000))
    second = enqueue("q", 2, dedupe_key="k")
    before = row(first)
    assert retry(first) is False
    assert row(first) == before
    finish(second, "DONE")
    assert retry(first) is True
    assert state(first) == "READY"


def test_a_retried_job_holds_its_key_again():
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, "FAILED")
    set_columns(first, finished_at=UtcNowPlus(-90_000))
    assert retry(first)
    assert enqueue("q", 2, dedupe_key="k") == first


def test_after_a_retry_no_two_live_jobs_have_one_key():
    first = enqueue("q", 1, dedupe_key="k")
    finish(first, "FAILED")
    set_columns(first, finished_at=UtcNowPlus(-90_000))
    second = enqueue("q", 2, dedupe_key="k")
    finish(second, "DONE")
    assert retry(first)
    assert enqueue("q", 3, dedupe_key="k") in (first, second)
    assert retry(second) is False
    assert Job.objects.filter(status__in=(0, 1)).count() == 1


@finding("S-B1")
def test_jobs_of_several_queues_in_one_call_are_told_apart_by_queue_and_key():
    held = enqueue("a", "held", dedupe_key="k")
    stale = make_in_state("DONE", "b", dedupe_key=b"k")
    set_columns(stale, finished_at=UtcNowPlus(-2 * 86_400))
    make = partial(NewJob, payload=Encoded("1"), dedupe_key=b"k")
    jobs = [make("a"), make("b"), NewJob("a", Encoded("2")), make("c", replaces=True), make("b"), make("c")]
    ids = add_many(jobs)
    assert ids[0] == held
    assert ids[1] == ids[4] != stale
    assert ids[3] == ids[5]
    assert len({*ids}) == 4
    rows = [Job.objects.get(pk=job_id) for job_id in ids]
    assert [(row.queue, row.payload) for row in rows] == [
        ("a", "held"),
        ("b", 1),
        ("a", 2),
        ("c", 1),
        ("b", 1),
        ("c", 1),
    ]


@finding("S-B1")
def test_a_job_that_replaces_another_does_so_in_a_call_whose_first_job_replaces_none():
    waits = enqueue("a", "old", dedupe_key="k")
    jobs = [NewJob("b", Encoded("1"), dedupe_key=b"k"), NewJob("a", Encoded("2"), dedupe_key=b"k", replaces=True)]
    assert add_many(jobs)[1] == waits
    assert Job.objects.get(pk=waits).payload == 2
