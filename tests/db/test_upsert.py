"""An INSERT of many rows that writes over those whose keys exist: text, numbers, NULL and the server's time."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction

from jobqueue.db.clock import read_now
from jobqueue.db.upsert import upsert
from jobqueue.models import Gate

pytestmark = pytest.mark.django_db
COLUMNS = ("wait_reason", "queue", "most", "opens_at")
AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def write(*rows):
    upsert(Gate, rows, keys=("subject",), changed=COLUMNS, stamped=("updated_at",), using="default")


def read():
    return list(Gate.objects.order_by("subject").values_list("subject", *COLUMNS))


def test_rows_are_new_or_written_over():
    write((1, "slot a", "q", 3, None), (-2, "slot b", None, None, AT))
    assert read() == [(-2, "slot b", None, None, AT), (1, "slot a", "q", 3, None)]
    write((1, "slot a", None, 0, AT), (3, "slot c", "q", 2**31 - 1, None))
    assert read() == [(-2, "slot b", None, None, AT), (1, "slot a", None, 0, AT), (3, "slot c", "q", 2**31 - 1, None)]


@pytest.mark.parametrize("text", ["it's", 'a "word"', "100 %s", "%", "a\\b", "주문", "\U0001f4e6 \\' x", "a; -- b", ""])
def test_text_arrives_as_it_is(text):
    write((1, text, text, 1, None))
    assert read() == [(1, text, text, 1, None)]


def test_the_time_is_that_of_the_server_now_and_other_columns_stay():
    Gate.objects.create(subject=1, wait_reason="rate", per_second=2.5, used_until=AT, updated_at=AT)
    write((1, "rate", None, None, None))
    row = Gate.objects.get(pk=1)
    assert (row.per_second, row.used_until) == (2.5, AT)
    assert abs(row.updated_at - read_now("default")) < timedelta(minutes=1)


def test_an_error_writes_no_row_of_the_statement():
    with pytest.raises(DatabaseError), transaction.atomic():
        write((1, "slot a", "q", 1, None), (2, None, "q", 1, None))
    assert read() == []
