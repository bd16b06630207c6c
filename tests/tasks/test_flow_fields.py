"""concurrency_key, concurrency_limit and rate_limit of @task: what is refused, and what is written on the row."""

import pytest

from jobqueue import task
from jobqueue.exceptions import InvalidType, InvalidValue, JobQueueError
from jobqueue.gates import declared
from jobqueue.models import Job
from tests.factories import job

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


def ship(order_id, *, fast=False):
    """The function of all tasks here."""


PATH = f"{__name__}.ship"


def of_order(order_id, fast=False):
    return None if order_id == 0 else f"order-{order_id}{'-fast' if fast else ''}"


def made(**fields):
    return task(**fields)(ship)


def key_of(result):
    key = job(result.id).concurrency_key
    return None if key is None else bytes(key)


class TestAConcurrencyKey:
    def test_may_be_a_function_of_the_arguments(self):
        work = made(concurrency_key=of_order, concurrency_limit=1)
        assert key_of(work.enqueue(7)) == b"order-7"
        assert key_of(work.enqueue(order_id=7, fast=True)) == b"order-7-fast"

    def test_may_be_a_text_or_bytes(self):
        work = made(concurrency_key="all", rate_limit="1/s")
        assert key_of(work.enqueue(1)) == b"all"
        assert key_of(work.using(concurrency_key=b"\xff\x00").enqueue(1)) == b"\xff\x00"
        assert key_of(work.using(concurrency_key="\u00e9").enqueue(1)) == "\u00e9".encode()

    def test_that_is_none_leaves_the_job_free(self):
        work = made(concurrency_key=of_order, concurrency_limit=1)
        assert key_of(work.enqueue(0)) is None

    def test_of_a_task_without_one_is_not_written(self):
        assert key_of(made(concurrency_limit=3).enqueue(1)) is None

    @pytest.mark.parametrize("bad", ["", "x" * 65, b"", "\u00e9" * 33, "\ud800", "a\x00b"])
    def test_that_cannot_be_stored_is_refused_by_the_decorator(self, bad):
        with pytest.raises(InvalidValue, match="concurrency_key"):
            made(concurrency_key=bad, concurrency_limit=1)
        assert declared.of_task(PATH).concurrency is None

    @pytest.mark.parametrize("bad", [7, 1.5, ("a",), True])
    def test_of_another_type_is_refused_by_the_decorator(self, bad):
        with pytest.raises(InvalidType, match="concurrency_key"):
            made(concurrency_key=bad, concurrency_limit=1)

    @pytest.mark.parametrize("bad", ["", "x" * 65, 5])
    def test_that_a_function_gives_is_checked_at_the_enqueue_and_nothing_is_written(self, bad):
        work = made(concurrency_key=lambda order_id: bad, concurrency_limit=1)
        with pytest.raises(JobQueueError, match="concurrency_key"):
            work.enqueue(1)
        assert not Job.objects.exists()

    def test_whose_function_raises_lets_that_through_and_nothing_is_written(self):
        work = made(concurrency_key=lambda order_id: 1 / 0, concurrency_limit=1)
        with pytest.raises(ZeroDivisionError):
            work.enqueue(1)
        assert not Job.objects.exists()

    def test_without_a_limit_is_refused_with_the_name_of_the_task(self):
        with pytest.raises(InvalidValue, match=rf"{PATH}.*concurrency_limit or rate_limit"):
            made(concurrency_key="all")

    def test_may_come_with_using_where_the_task_has_a_limit(self):
        work = made(concurrency_limit=2)
        assert key_of(work.using(concurrency_key="mine").enqueue(1)) == b"mine"

    def test_with_using_of_a_task_without_a_limit_is_refused(self):
        with pytest.raises(InvalidValue, match="limit"):
            made().using(concurrency_key="mine")


@pytest.mark.parametrize(
    ("field", "bad", "error"),
    [
        ("concurrency_limit", 0, InvalidValue),
        ("concurrency_limit", -1, InvalidValue),
        ("concurrency_limit", 2**31, InvalidValue),
        ("concurrency_limit", True, InvalidType),
        ("concurrency_limit", 1.5, InvalidType),
        ("concurrency_limit", "3", InvalidType),
        ("rate_limit", "10/x", InvalidValue),
        ("rate_limit", "0/s", InvalidValue),
        ("rate_limit", "-1/s", InvalidValue),
        ("rate_limit", "", InvalidValue),
        ("rate_limit", "10 per second", InvalidValue),
        ("rate_limit", 10, InvalidType),
        ("rate_limit", 0, InvalidType),
    ],
)
def test_a_wrong_limit_is_refused_by_the_decorator_with_the_name_of_the_task(field, bad, error):
    with pytest.raises(error, match=rf"{PATH}.*{field}"):
        made(**{field: bad})
    assert declared.of_task(PATH) == (None, None)


@pytest.mark.parametrize("field", ["concurrency_limit", "rate_limit"])
def test_using_knows_no_limits_because_they_are_those_of_the_task(field):
    with pytest.raises(TypeError, match=field):
        made(concurrency_limit=1).using(**{field: 5 if field == "concurrency_limit" else "5/s"})


def test_a_copy_keeps_the_limits_of_the_task():
    work = made(concurrency_limit=3, rate_limit="90/m")
    copy = work.using(priority=5, queue_name="other")
    assert (copy.concurrency_limit, copy.rate_limit) == (3, "90/m")
    assert declared.of_task(PATH) == (3, 1.5)


def test_a_task_without_limits_has_none():
    work = made()
    assert (work.concurrency_key, work.concurrency_limit, work.rate_limit) == (None, None, None)
    assert PATH not in declared.tasks()


def test_the_limits_count_under_the_earlier_names_of_the_task_too():
    made(concurrency_limit=2, aliases=["old.path.ship"])
    assert declared.of_task("old.path.ship").concurrency == 2


def test_the_limits_of_a_task_are_stored_on_no_row():
    work = made(concurrency_limit=2, rate_limit="5/s", concurrency_key="all")
    assert "limit" not in str(job(work.enqueue(1).id).options)


def test_plain_sql_may_write_the_key_of_a_job(sql):
    made(concurrency_limit=1)
    sql(
        "INSERT INTO job_queue(queue, status, priority, run_at, payload, task, concurrency_key) "
        "VALUES ('q', 0, 0, '2026-01-01 00:00:00', '{\"args\": [1], \"kwargs\": {}}', %s, %s)",
        [PATH, b"by sql"],
    )
    assert bytes(Job.objects.get().concurrency_key) == b"by sql"
