"""The retry policy of a task: what is refused, when it is asked, and moves of jobs with a dedupe key."""

from types import SimpleNamespace

import pytest
from django.test import override_settings

from jobqueue import enqueue, task
from jobqueue.checks import check_settings, check_tasks
from jobqueue.exceptions import Discard, InvalidType, JobCanceled, LockNotAcquired, Retry, Snooze
from jobqueue.models import JobAttempt
from jobqueue.transitions import claim
from jobqueue.worker.child.outcomes import settle
from tests.factories import job, run_lease, state
from tests.marks import committed, finding
from tests.races.actors import holding
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.usefixtures("own_registry")]
ERRORS = []


def raises():
    raise ERRORS.pop(0) if ERRORS else ValueError("boom")


def made(**fields):
    ERRORS.clear()
    return task(queue_name="q", **fields)(raises)


def run_one():
    (lease,) = claim("q", worker="w")
    counts = SimpleNamespace(finished=0, failed=0, lost=0, snoozed=0, discarded=0)
    assert settle([run_lease(lease)], counts) == []


class Waits:
    async def __call__(self, failures, error):
        return 1


async def waits(failures, error):
    return 1


@pytest.mark.parametrize("wait", [waits, Waits()])
def test_a_coroutine_function_is_no_back_off(wait):
    with pytest.raises(InvalidType, match=r"test_impossible_policies\.raises: backoff is a coroutine function"):
        made(backoff=wait)


@pytest.mark.parametrize("wait", [lambda: 1, lambda failures: 1, lambda *, failures, error: 1])
def test_a_back_off_function_with_other_parameters_is_refused(wait):
    with pytest.raises(InvalidType, match=r"test_impossible_policies\.raises: backoff is a function of .*must take"):
        made(backoff=wait)


@pytest.mark.parametrize("wait", [max, lambda *given: 1, lambda task_result, exception: 1, lambda a, b, c=1: 1])
def test_a_back_off_function_that_can_be_called_is_taken(wait):
    made(backoff=wait)


def test_check_reports_a_policy_that_cannot_work_with_the_settings():
    made(move_after=2, move_to="slow", retry_until_seconds=5)

    def problems():
        return [(found.id, found.msg) for found in check_tasks()]

    with override_settings(JOBQUEUE={}):
        assert problems() == []
    with override_settings(JOBQUEUE={"QUEUES": {"q": {"MAX_ATTEMPTS": 2}}, "BACKOFF_BASE_SECONDS": 10}):
        assert problems() == [
            (
                "jobqueue.E022",
                f"task {__name__}.raises: move_after is 2, and its jobs are FAILED before they move: "
                "max_attempts is 2 by JOBQUEUE.",
            ),
            (
                "jobqueue.E022",
                f"task {__name__}.raises: retry_until_seconds is 5, and no retry begins so early: "
                "the first wait is at least 8 s by JOBQUEUE.",
            ),
        ]


@pytest.mark.parametrize(
    ("error", "asks"),
    [
        (Discard("gone"), False),
        (JobCanceled(), False),
        (Snooze(60), False),
        (LockNotAcquired("x"), False),
        (Retry(5), False),
        (Retry(), True),
        (KeyError("x"), True),
    ],
)
def test_the_back_off_function_is_asked_only_after_a_failure(error, asks):
    asked = []

    def wait(failures, error):
        asked.append(error)
        return 0

    one = made(backoff=wait)
    ERRORS.append(error)
    one.enqueue()
    run_one()
    assert asked == [error] * asks


def test_a_job_with_a_dedupe_key_moves_and_frees_its_key_in_the_queue_that_it_leaves():
    one = made(backoff=0, move_after=1, move_to="slow", max_attempts=4)
    job_id = int(one.using(dedupe_key="k").enqueue().id)
    run_one()
    assert (job(job_id).queue, job(job_id).attempts, state(job_id)) == ("slow", 1, "READY")
    assert int(one.using(dedupe_key="k").enqueue().id) != job_id
    assert int(one.using(queue_name="slow", dedupe_key="k").enqueue().id) == job_id


@pytest.mark.skipif(VENDOR == "sqlite", reason="one writer: an enqueue that is not committed holds up all others")
def test_an_enqueue_that_is_not_committed_does_not_hold_up_a_failure_that_moves_its_job():
    one = made(backoff=0, move_after=1, move_to="slow", max_attempts=4)
    job_id = int(one.using(dedupe_key="k").enqueue().id)

    def end():
        run_one()
        return job(job_id)

    with holding(lambda: enqueue("slow", 1, dedupe_key="k"), commit=False):
        recorded = end()
    assert (recorded.queue, recorded.attempts, state(job_id)) == ("q", 1, "READY")
    assert end().queue == "slow", "with its next failure"
    assert JobAttempt.objects.filter(job_id=job_id).count() == 2


@finding("N8")
def test_wrong_settings_are_told_by_their_own_check_and_raise_in_no_other_one():
    made(backoff=5, retry_until_seconds=60)
    with override_settings(JOBQUEUE={"LEASE": 5}):
        assert [message.id for message in check_settings()] == ["jobqueue.E001"]
        assert check_tasks() == []
