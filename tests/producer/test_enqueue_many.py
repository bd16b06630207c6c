"""Many jobs at once: all or none, ids in the order of the payloads."""

import pytest
from django.db import connection

from jobqueue import enqueue, enqueue_many
from jobqueue.exceptions import InvalidType, InvalidValue, PayloadError
from jobqueue.models import Job
from tests.factories import job, undone
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("count", [1, 2, 79, 80, 81, 1000, 2501])
def test_ids_come_in_the_order_of_the_payloads(count):
    ids = enqueue_many("q", range(count))
    assert len(set(ids)) == count
    stored = dict(Job.objects.values_list("pk", "payload"))
    assert [stored[job_id] for job_id in ids] == list(range(count))


@pytest.mark.skipif(VENDOR != "mysql", reason="the others return the ids of an INSERT")
def test_ids_are_those_of_the_jobs_on_a_server_that_counts_in_steps():
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION auto_increment_increment = 3")
        try:
            ids = enqueue_many("q", range(5))
        finally:
            cursor.execute("SET SESSION auto_increment_increment = DEFAULT")
    assert [job(job_id).payload for job_id in ids] == list(range(5))


def test_no_payloads_give_no_ids():
    assert enqueue_many("q", []) == []


def test_large_payloads_are_split_over_several_statements():
    texts = [f"{n}" * 900_000 for n in range(9)]
    ids = enqueue_many("q", texts)
    assert [job(job_id).payload[0] for job_id in ids] == [text[0] for text in texts]


def test_options_hold_for_all():
    ids = enqueue_many("mail", [1, 2], priority=7, max_attempts=2)
    assert [(job(i).queue, job(i).priority, job(i).max_attempts) for i in ids] == [("mail", 7, 2)] * 2


def test_one_bad_payload_and_nothing_is_written():
    with pytest.raises(PayloadError, match=r"payloads\[1\]"):
        enqueue_many("q", [1, float("nan"), 3])
    assert not Job.objects.exists()


@pytest.mark.parametrize("payloads", ["text", b"raw", {"a": 1}])
def test_one_payload_instead_of_a_list_is_refused(payloads):
    with pytest.raises(InvalidType):
        enqueue_many("q", payloads)
    assert not Job.objects.exists()


def test_a_bad_queue_is_refused_also_without_payloads():
    with pytest.raises(InvalidValue):
        enqueue_many("", [])


def test_a_held_key_gives_the_existing_job():
    held = enqueue("q", 0, dedupe_key="b")
    ids = enqueue_many("q", [1, 2, 3], dedupe_keys=["a", "b", None])
    assert ids[1] == held
    assert Job.objects.count() == 3
    assert [job(i).payload for i in ids] == [1, 0, 3]


def test_a_key_that_comes_twice_gives_one_job():
    ids = enqueue_many("q", [1, 2, 3], dedupe_keys=["a", "a", b"a"])
    assert len(set(ids)) == 1
    assert job(ids[0]).payload == 1


@pytest.mark.parametrize("count", [200])
def test_many_keys_of_which_half_are_held(count):
    first = enqueue_many("q", range(0, count, 2), dedupe_keys=[str(n) for n in range(0, count, 2)])
    ids = enqueue_many("q", range(count), dedupe_keys=[str(n) for n in range(count)])
    assert ids[::2] == first
    assert [job(i).payload for i in ids] == list(range(count))


def test_the_number_of_keys_must_fit():
    with pytest.raises(InvalidValue):
        enqueue_many("q", [1, 2], dedupe_keys=["a"])
    assert not Job.objects.exists()


@pytest.mark.parametrize("keys", [["ok", ""], ["ok", "k" * 65], ["ok", 5]])
def test_one_bad_key_and_nothing_is_written(keys):
    with pytest.raises((InvalidValue, InvalidType)):
        enqueue_many("q", [1, 2], dedupe_keys=keys)
    assert not Job.objects.exists()


def test_all_go_away_with_the_callers_transaction():
    with undone():
        enqueue_many("q", range(10))
    assert not Job.objects.exists()
