"""A counter of several rows is one number, and those who add do not wait for each other."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from jobqueue import counter
from jobqueue.counter import ShardedCounter
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.inspect import assert_locks_at_most
from jobqueue.models import CounterShard
from jobqueue.models.counter import DELETED_LOCKS
from tests.marks import committed
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

pytestmark = committed
many_writers = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer at a time")


def on_shard(number, work):
    """`work` in a thread that adds to that row."""

    def act():
        counter._here.number = number
        return work()

    return act


def test_a_new_counter_is_zero_and_what_was_added_is_its_value():
    visits = ShardedCounter("visits")
    assert visits.value() == 0
    visits.add()
    visits.add(41)
    visits.add(-2)
    assert visits.value() == ShardedCounter("visits", shards=3).value() == 40
    assert ShardedCounter("Visits").value() == 0


def test_nothing_is_lost_when_many_add_at_once():
    def add():
        for _ in range(10):
            ShardedCounter("hot", shards=4).add()

    # Most of them meet on a row that is not there yet.
    assert all_at_once([on_shard(number % 3, add) for number in range(6)]) == [None] * 6
    assert ShardedCounter("hot").value() == 60
    assert CounterShard.objects.filter(counter_key="hot").count() == 3


def test_an_addition_is_part_of_the_callers_transaction():
    visits = ShardedCounter("visits")
    with transaction.atomic():
        visits.add(5)
        assert visits.value() == 5
        assert Actor(visits.value).result() == 0
        transaction.set_rollback(True)
    assert visits.value() == 0


@many_writers
def test_two_transactions_add_to_different_rows_without_waiting():
    visits = ShardedCounter("visits")
    for number in (0, 1):
        Actor(on_shard(number, visits.add)).result()
    with holding(on_shard(0, visits.add)):
        Actor(on_shard(1, visits.add)).result()
        waiting = Actor(on_shard(16, visits.add))
        assert waiting.is_blocked()
    waiting.result()
    assert visits.value() == 5


@many_writers
def test_an_addition_locks_one_row_and_no_gap():
    visits = ShardedCounter("visits")
    visits.add()
    with transaction.atomic(), assert_locks_at_most(rows=1, gaps=0):
        visits.add()
        visits.add()


def test_an_addition_is_one_statement_and_a_value_is_one(django_assert_num_queries):
    visits = ShardedCounter("visits")
    visits.add()
    with django_assert_num_queries(1):
        visits.add()
    with django_assert_num_queries(1):
        visits.value()


def test_coroutines_have_their_forms():
    async def both():
        await ShardedCounter("visits").aadd(3)
        return await ShardedCounter("visits").avalue()

    assert async_to_sync(both)() == 3


def test_bad_values_are_refused_before_anything_is_written():
    for bad in ("", "x" * 256):
        with pytest.raises(InvalidValue):
            ShardedCounter(bad)
    with pytest.raises(InvalidValue):
        ShardedCounter("x", shards=0)
    for bad, error in ((1.5, InvalidType), (True, InvalidType), (2**60, InvalidValue)):
        with pytest.raises(error):
            ShardedCounter("x").add(bad)
    assert not CounterShard.objects.exclude(counter_key=DELETED_LOCKS).exists()


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="a plan of InnoDB")
def test_a_value_reads_a_range_of_the_primary_key():
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN FORMAT=JSON SELECT SUM(total) FROM job_counter WHERE counter_key = 'x'")
        assert '"PRIMARY"' in cursor.fetchone()[0]
