"""run_task() runs one job with all that a worker gives it; assert_idempotent() runs one twice."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from jobqueue.exceptions import InvalidType, InvalidValue, PayloadError, ResultError
from jobqueue.models import Job, JobAttempt
from jobqueue.testing import assert_idempotent, run_inline, run_task
from tests.app import kit, tasks
from tests.app.models import Ticket
from tests.factories import make_job, state

pytestmark = pytest.mark.usefixtures("kind")


def test_a_task_gets_a_real_context():
    assert run_task(kit.tells, "a", 1) == [1, "default", 1, 16, True, False, "a", 1]
    assert run_task(kit.tells, attempt=7) == [7, "default", 1, 16, True, False]
    assert set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}


def test_a_scheduled_task_gets_the_tick_of_the_test_and_none_without_it():
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert run_task(kit.tells_its_tick) is None
    assert run_task(kit.tells_its_tick, tick=noon.astimezone(ZoneInfo("Asia/Seoul"))) == "2026-01-31T12:00:00+00:00"
    with pytest.raises(InvalidValue, match=r"tick .* is naive"):
        run_task(kit.tells_its_tick, tick=noon.replace(tzinfo=None))


def test_other_jobs_are_left_alone(sold):
    other = kit.sells.using(priority=100).enqueue("other")
    with run_inline():
        assert run_task(kit.sells, "mine") == ["mine"]
    assert sold() == ["mine"]
    assert state(other.id) == "READY"


def test_delay_and_dedupe_key_do_not_matter(sold):
    keyed = kit.sells.using(dedupe_key="k")
    keyed.enqueue("a")
    assert run_task(keyed, "b") == ["b"]


def test_finish_works_and_its_result_is_the_tasks():
    assert run_task(kit.finishes, "a") == {"sold": "a"}
    assert run_task(kit.finishes_in_a_transaction, "b") == 1


def test_coroutines_work(sold):
    assert run_task(kit.sells_as_a_coroutine, "a") == "a"


def test_what_a_task_raises_comes_out_and_is_recorded(sold):
    with pytest.raises(ValueError, match="attempt 2"):
        run_task(kit.fails_twice, "x", attempt=2)
    [attempt] = JobAttempt.objects.all()
    assert (attempt.attempt, Job.objects.get().attempts, sold()) == (2, 2, ["x-2"])
    with pytest.raises(LookupError):
        run_task(kit.always_fails, attempt=2)
    assert Job.objects.filter(status=Job.Status.FAILED).count() == 1


def test_a_result_that_cannot_be_stored_is_told():
    with pytest.raises(ResultError):
        run_task(tasks.unstorable)


def test_arguments_that_are_not_json_are_refused():
    with pytest.raises(PayloadError):
        run_task(kit.sells, object())


@pytest.mark.parametrize("task", [kit.sells_once, kit.finishes], ids=["looks-first", "finish"])
def test_a_job_whose_second_run_changes_nothing_is_idempotent(task, sold):
    assert_idempotent(task, "a", models=[Ticket], effect=sold)
    assert sold() == ["a"]
    assert state(Job.objects.get().pk) == "DONE"


def test_a_job_whose_second_run_changes_something_is_not():
    with pytest.raises(AssertionError, match=r"rows of testapp\.Ticket: 1 -> 2") as caught:
        assert_idempotent(kit.sells_another, models=[Ticket], effect=Ticket.objects.count)
    assert "the effect: 1 -> 2" in str(caught.value)
    job = Job.objects.get()
    assert (job.fence, job.attempts) == (2, 1), "delivered twice, the first delivery charged as lost"


def test_a_job_whose_second_run_raises_is_not_idempotent():
    with pytest.raises(AssertionError, match="raised in its second run: IntegrityError"):
        assert_idempotent(kit.sells, "a", models=[Ticket])


def test_a_job_that_fails_at_once_raises_its_own_error():
    with pytest.raises(LookupError):
        assert_idempotent(kit.always_fails, models=[Ticket])


def test_there_must_be_something_to_compare():
    make_job()
    with pytest.raises(InvalidType, match="effect=, models="):
        assert_idempotent(kit.sells, "a")
    assert Job.objects.count() == 1
