"""Many rows are changed in chunks, each committed, and an interrupted run can be taken up again."""

from types import SimpleNamespace

import pytest
from django.db import connection, transaction
from django.db.models import Window
from django.db.models.functions import RowNumber
from django.test.utils import CaptureQueriesContext

from jobqueue.bulk import ChunkProgress, delete_in_chunks, update_in_chunks
from jobqueue.exceptions import InsideTransaction, InvalidType, InvalidValue
from tests.app.models import Ticket
from tests.marks import committed, finding
from tests.races.actors import Actor, holding
from tests.settings import VENDOR

pytestmark = committed


@pytest.fixture
def tickets():
    Ticket.objects.bulk_create([Ticket(number=f"{n:03d}") for n in range(25)])
    return list(Ticket.objects.order_by("pk").values_list("pk", flat=True))


def sold():
    return Ticket.objects.filter(sold=True).count()


def test_every_row_is_changed_and_each_chunk_is_committed_before_the_next(tickets):
    seen = []

    def look(progress):
        seen.append((progress, Actor(sold).result()))

    progress = update_in_chunks(Ticket.objects.all(), {"sold": True}, chunk_size=10, on_chunk=look)
    assert progress == ChunkProgress(rows=25, chunks=3, last_pk=tickets[-1])
    assert [count for _, count in seen] == [10, 20, 25]
    assert [found.last_pk for found, _ in seen] == [tickets[9], tickets[19], tickets[24]]


def test_an_interrupted_run_goes_on_where_it_was(tickets):
    stored = []

    def store(progress):
        stored.append(progress.last_pk)
        if len(stored) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_in_chunks(Ticket.objects.all(), {"buyer": "ann"}, chunk_size=10, on_chunk=store)
    assert Ticket.objects.filter(buyer="ann").count() == 20
    progress = update_in_chunks(Ticket.objects.all(), {"buyer": "ann"}, chunk_size=10, after=stored[-1])
    assert (progress.rows, progress.chunks) == (5, 1)
    assert not Ticket.objects.exclude(buyer="ann").exists()


def test_rows_are_deleted_in_chunks_too(tickets):
    progress = delete_in_chunks(Ticket.objects.filter(pk__lte=tickets[14]), chunk_size=10)
    assert (progress.rows, progress.chunks) == (15, 2)
    assert Ticket.objects.count() == 10


def test_the_conditions_of_the_queryset_hold_until_the_write(tickets):
    def sell_the_next(progress):
        if progress.chunks == 1:
            Ticket.objects.filter(pk__in=tickets[10:12]).update(buyer="bob", sold=True)

    progress = update_in_chunks(
        Ticket.objects.filter(sold=False), {"sold": True}, chunk_size=10, on_chunk=sell_the_next
    )
    assert progress.rows == 23
    assert Ticket.objects.filter(buyer="bob").count() == 2


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time")
def test_a_row_that_leaves_the_queryset_while_its_chunk_waits_for_it_is_left_alone(tickets):
    def sell():
        Ticket.objects.filter(pk=tickets[3]).update(sold=True, buyer="bob")

    with holding(sell):
        run = Actor(lambda: update_in_chunks(Ticket.objects.filter(sold=False), {"sold": True, "buyer": "ann"}))
        assert run.is_blocked()
    assert run.result().rows == 24
    assert Ticket.objects.get(pk=tickets[3]).buyer == "bob"


def test_the_largest_chunk_is_taken_by_every_database():
    Ticket.objects.bulk_create([Ticket(number=f"{n:06d}") for n in range(10_001)], batch_size=1000)
    progress = update_in_chunks(Ticket.objects.all(), {"sold": True}, chunk_size=10_000)
    assert (progress.rows, progress.chunks) == (10_001, 2)
    assert delete_in_chunks(Ticket.objects.all(), chunk_size=10_000).rows == 10_001


def test_an_empty_queryset_writes_nothing(tickets):
    with CaptureQueriesContext(connection) as captured:
        assert update_in_chunks(Ticket.objects.filter(pk=-1), {"sold": True}) == ChunkProgress()
    assert len(captured) == 1


def test_chunks_sleep_in_between_and_not_at_the_end(tickets, monkeypatch):
    slept = []
    # Only the module's own sleep: threads that other tests left running may sleep as long.
    monkeypatch.setattr("jobqueue.bulk.time", SimpleNamespace(sleep=slept.append))
    delete_in_chunks(Ticket.objects.all(), chunk_size=10, sleep_seconds=0.5)
    assert slept == [0.5, 0.5]


def test_inside_a_transaction_it_is_refused(tickets):
    with transaction.atomic(), pytest.raises(InsideTransaction, match="Nothing was written"):
        update_in_chunks(Ticket.objects.all(), {"sold": True})
    assert sold() == 0


def test_what_cannot_be_cut_or_written_is_refused(tickets):
    for bad in (Ticket.objects.all()[:3], Ticket.objects.distinct(), Ticket.objects.values("pk")):
        with pytest.raises(InvalidValue, match="cannot be cut into chunks"):
            delete_in_chunks(bad)
    with pytest.raises(InvalidType):
        delete_in_chunks([1, 2])
    for changes in ({}, {"nope": 1}, {"id": 1}):
        with pytest.raises(InvalidValue):
            update_in_chunks(Ticket.objects.all(), changes)
    for options in ({"chunk_size": 0}, {"chunk_size": 10_001}, {"sleep_seconds": -1}):
        with pytest.raises(InvalidValue):
            delete_in_chunks(Ticket.objects.all(), **options)
    assert Ticket.objects.count() == 25


@finding("L22")
def test_a_window_function_would_count_within_each_chunk_and_is_refused(tickets):
    counted = Ticket.objects.annotate(place=Window(RowNumber(), order_by="number"))
    with pytest.raises(InvalidValue, match="window function"):
        update_in_chunks(counted.filter(place__lte=3), {"sold": True}, chunk_size=10)
    assert sold() == 0
    assert update_in_chunks(counted, {"sold": True}).rows == 25, "one that decides nothing is left out"
