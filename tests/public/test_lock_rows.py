"""lock_rows() and take(): the caller chooses whether to wait for rows that others have locked."""

import pytest
from django.db import transaction

from jobqueue.allocate import take
from jobqueue.exceptions import InvalidType, InvalidValue, LockNotAcquired, TransactionRequired
from jobqueue.transactions import lock_rows
from tests.app.models import Ticket
from tests.locks.helpers import repeatable_read
from tests.marks import committed
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

pytestmark = committed
ROW_LOCKS = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite locks the whole database, not a row")
OLD_SNAPSHOTS = pytest.mark.skipif(
    VENDOR not in ("mysql", "mariadb"), reason="PostgreSQL refuses such a transaction; SQLite has one writer"
)
SOLD = {"sold": True, "buyer": "ann"}


@pytest.fixture(autouse=True)
def tickets():
    Ticket.objects.bulk_create([Ticket(number=f"t{n}") for n in range(3)])


def free():
    return Ticket.objects.filter(sold=False).order_by("number")


def numbers(rows):
    return [row.number for row in rows]


def lock_the_first():
    # By a unique value: InnoDB locks all that a statement reads, and may read three rows in whatever way.
    assert Ticket.objects.select_for_update().get(number="t0")


@ROW_LOCKS
def test_skip_locked_leaves_out_what_others_have_locked():
    with holding(lock_the_first), transaction.atomic():
        assert numbers(lock_rows(free(), skip_locked=True)) == ["t1", "t2"]


@ROW_LOCKS
def test_nowait_raises_at_once_and_leaves_the_transaction_usable():
    with holding(lock_the_first), transaction.atomic():
        Ticket.objects.create(number="before")
        with pytest.raises(LockNotAcquired, match="app_ticket"):
            lock_rows(free(), nowait=True)
        Ticket.objects.create(number="after")
    assert {"before", "after"} <= set(Ticket.objects.values_list("number", flat=True))


@pytest.mark.parametrize("options", [{}, {"skip_locked": True}, {"nowait": True}])
def test_free_rows_are_locked_and_returned_in_order(options):
    with transaction.atomic():
        assert numbers(lock_rows(free(), **options)) == ["t0", "t1", "t2"]


@ROW_LOCKS
def test_what_it_has_locked_others_skip():
    def lock_two():
        lock_rows(free().filter(number__in=["t0", "t1"]))

    with holding(lock_two), transaction.atomic():
        assert numbers(lock_rows(free(), skip_locked=True)) == ["t2"]


def test_outside_a_transaction_nothing_is_locked():
    with pytest.raises(TransactionRequired):
        lock_rows(free())


@pytest.mark.parametrize("function", [lock_rows, lambda rows, **options: take(rows, changes=SOLD, **options)])
def test_two_answers_to_one_question_are_refused(function):
    with transaction.atomic(), pytest.raises(InvalidValue, match="one of them"):
        function(free(), skip_locked=True, nowait=True)
    with transaction.atomic(), pytest.raises(InvalidType, match="nowait"):
        function(free(), nowait="yes")
    assert free().count() == 3


@ROW_LOCKS
def test_take_answers_with_fewer_or_raises_instead_of_waiting():
    with holding(lock_the_first):
        with pytest.raises(LockNotAcquired, match="2 of 3 rows are free"):
            take(free(), 3, changes=SOLD, nowait=True)
        assert numbers(take(free(), 3, changes=SOLD, skip_locked=True)) == ["t1", "t2"]
        with pytest.raises(LockNotAcquired, match="0 of 1"):
            take(free(), changes=SOLD, request_id="basket-1", nowait=True)
        assert take(free(), changes=SOLD, request_id="basket-1", skip_locked=True) == []
    assert numbers(take(free(), changes=SOLD, request_id="basket-1")) == ["t0"]


@pytest.mark.parametrize("options", [{"skip_locked": True}, {"nowait": True}])
def test_take_gives_all_there_is_where_nobody_has_locked_a_row(options):
    assert numbers(take(free(), 5, changes=SOLD, **options)) == ["t0", "t1", "t2"]
    assert take(free(), 5, changes=SOLD, **options) == []


@OLD_SNAPSHOTS
def test_nowait_gives_fewer_if_only_an_old_snapshot_shows_rows_that_others_have_taken():
    with repeatable_read():
        assert free().count() == 3
        assert numbers(Actor(lambda: take(free(), 2, changes=SOLD)).result()) == ["t0", "t1"]
        assert numbers(take(free(), 3, changes=SOLD, nowait=True)) == ["t2"]
        assert take(free(), 3, changes=SOLD, nowait=True) == []
    assert not free().exists()


@OLD_SNAPSHOTS
def test_nowait_raises_in_an_old_snapshot_too_if_a_row_is_locked():
    with repeatable_read():
        assert free().count() == 3
        with holding(lock_the_first), pytest.raises(LockNotAcquired, match="2 of 3 rows are free"):
            take(free(), 3, changes=SOLD, nowait=True)
