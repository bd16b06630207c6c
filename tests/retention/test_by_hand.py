"""delete_job(): one ended job, whatever its age."""

import pytest

from jobqueue import enqueue, enqueue_many
from jobqueue.models import ArchivedJob, JobAttempt, JobTag
from jobqueue.retention.deletion import delete_job
from jobqueue.transitions import fail
from tests.factories import claim_one, make_in_state
from tests.retention.helpers import ended, kept, left

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("state", ["DONE", "FAILED", "CANCELED"])
def test_an_ended_job_is_deleted_with_its_attempts(state):
    job_id, other = ended(state, 0, attempts=1), ended(state, 0, attempts=1)
    assert delete_job(job_id)
    assert left() == [other]
    assert [*JobAttempt.objects.values_list("job_id", flat=True)] == [other]
    assert not delete_job(job_id)


def test_its_tags_are_deleted_with_it():
    job_id, other = ended("DONE", 0), ended("DONE", 0)
    JobTag.objects.bulk_create([JobTag(job_id=number, tag="mail") for number in (job_id, other)])
    assert delete_job(job_id)
    assert [*JobTag.objects.values_list("job_id", flat=True)] == [other]


@pytest.mark.parametrize("state", ["READY", "PROCESSING"])
def test_a_job_that_has_not_ended_stays(state):
    job_id = make_in_state(state)
    assert not delete_job(job_id)
    assert left() == [job_id]


def test_a_dead_letter_that_blocks_its_key_stays():
    first, second = enqueue_many("q", range(2), ordering_key="k")
    fail(claim_one(), error="boom", retry=False)
    assert not delete_job(first)
    assert left() == [first, second]


def test_its_dedupe_key_is_free_then():
    first = ended("DONE", 0, dedupe_key=b"k")
    assert enqueue("q", 1, dedupe_key="k") == first
    assert delete_job(first)
    assert enqueue("q", 1, dedupe_key="k") != first


def test_it_goes_to_the_archive_where_the_setting_says_so(settings):
    kept(settings, done={"AGE": "7d", "ARCHIVE": True})
    job_id = ended("DONE", 0)
    assert delete_job(job_id)
    assert ArchivedJob.objects.filter(pk=job_id).exists()
