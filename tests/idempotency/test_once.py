"""once(): one effect per key; repeats get its result, whoever else is in the block is waited for."""

import uuid
from contextlib import suppress

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.test import override_settings

from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import (
    InvalidType,
    InvalidValue,
    KeyReused,
    NotSupported,
    PayloadError,
    PayloadTooLarge,
    StaleSnapshot,
)
from jobqueue.idempotency import InProgress, once
from jobqueue.models import IdempotencyRecord
from tests.app.models import Account, Ticket
from tests.factories import seconds_from_now, undone
from tests.marks import finding
from tests.races.actors import Actor, RolledBack, all_at_once, holding
from tests.settings import VENDOR

plain, real = pytest.mark.django_db, pytest.mark.django_db(transaction=True)
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one write lock for the whole database")


def sell(number="1", key="k", result="sold", **options):
    """The effect is a row; the answer is what a caller gets."""
    with once(key, **options) as o:
        if o.done:
            return f"again {o.result}"
        Account.objects.create(owner=number)
        o.result = result
    return o.result


def begin(key="k"):
    """Enter the block and stay in it: for holding(), whose transaction ends it."""
    entered = once(key)
    entered.__enter__()
    Account.objects.create(owner="held")
    entered.result = "held"
    entered.__exit__(None, None, None)
    return entered


@plain
def test_a_repeat_gets_the_result_and_does_nothing():
    assert [sell(), sell("2"), sell("3", key="other")] == ["sold", "again sold", "sold"]
    assert sorted(Account.objects.values_list("owner", flat=True)) == ["1", "3"]
    found = IdempotencyRecord.objects.get(label="k")
    assert found.result == "sold"
    assert 86_000 < seconds_from_now(found.expires_at) < 86_401


@plain
@pytest.mark.parametrize("result", [None, 0, "", [], {"a": [1, {"b": None}]}, "ä\U0001f600", 1.5, False])
def test_results_come_back_as_they_were(result):
    assert sell(result=result) == result
    with once("k") as o:
        assert o.done
        assert o.result == result


@plain
def test_an_error_in_the_block_undoes_effect_and_record():
    def fail():
        with once("k"):
            Account.objects.create(owner="1")
            raise RolledBack

    with transaction.atomic():
        with pytest.raises(RolledBack):
            fail()
        assert not Account.objects.exists()
        assert sell("2") == "sold"
    assert Account.objects.get().owner == "2"


@real
def test_in_a_callers_transaction_effect_and_record_are_undone_with_it():
    with undone():
        assert sell() == "sold"
        assert sell() == "again sold"
    assert not Account.objects.exists()
    assert sell() == "sold"


@plain
@pytest.mark.parametrize(
    ("result", "error", "limit"),
    [({1, 2}, PayloadError, 1000), (object(), PayloadError, 1000), ("x" * 99, PayloadTooLarge, 50)],
)
def test_a_result_that_cannot_be_kept_undoes_the_effect(result, error, limit):
    with override_settings(JOBQUEUE={"MAX_RESULT_BYTES": limit}), transaction.atomic():
        with pytest.raises(error):
            sell(result=result)
        assert not Account.objects.exists()
        assert sell(result=1) == 1


@plain
def test_after_its_time_to_live_a_key_is_new():
    sell(ttl_seconds=60)
    IdempotencyRecord.objects.update(expires_at=UtcNowPlus(-1))
    assert sell("2", result="new", ttl_seconds=10) == "new"
    assert sell("3") == "again new"
    assert seconds_from_now(IdempotencyRecord.objects.get().expires_at) < 11


@plain
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A", "a"),
        ("a", "a "),
        ("é", "e"),
        ("1", 1),
        (b"a", "a"),
        (("a", 1), ("a", "1")),
        (("a", "b"), ("ab",)),
        (("a:b",), ("a", "b")),
        ("x" * 5000 + "a", "x" * 5000 + "b"),
        ("nul\x00a", "nul\x00b"),
    ],
)
def test_keys_that_look_alike_are_two(one, other):
    assert [sell("1", key=one), sell("2", key=other)] == ["sold", "sold"]
    assert [sell("3", key=one), sell("4", key=other)] == ["again sold", "again sold"]


@plain
def test_one_part_is_a_tuple_of_one():
    number = uuid.uuid4()
    assert sell("1", key=number) == "sold"
    assert sell("2", key=(number,)) == "again sold"


@plain
@finding("L25")
def test_a_uuid_and_its_string_are_two_keys():
    number = uuid.uuid4()
    assert sell("1", key=number) == "sold"
    assert sell("2", key=str(number)) == "sold"


@plain
@pytest.mark.parametrize("key", ["", b"", (), ("a", ""), None, True, 1.5, ["a"], ("a", None), "x" * 70_000])
def test_bad_keys_are_refused(key):
    with pytest.raises((InvalidType, InvalidValue), match="Nothing was written"):
        once(key)
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize(
    "options", [{"ttl_seconds": 0}, {"ttl_seconds": -1}, {"timeout_seconds": -1}, {"ttl_seconds": "1"}]
)
def test_bad_times_are_refused(options):
    with pytest.raises((InvalidType, InvalidValue)):
        once("k", **options)


@plain
def test_the_same_key_with_another_fingerprint_is_refused():
    assert sell(fingerprint=b"one") == "sold"
    assert sell(fingerprint=b"one") == "again sold"
    with transaction.atomic():
        with pytest.raises(KeyReused, match="another request"):
            sell(fingerprint=b"two")
        assert sell("2", key="next") == "sold"


@plain
def test_as_a_decorator_the_key_may_depend_on_the_arguments():
    calls = []

    @once(lambda order, **_: ("ship", order), ttl_seconds=60)
    def ship(order, note=""):
        """Ship it."""
        calls.append(order)
        return {"order": order, "note": note}

    @once("nightly")
    def nightly():
        calls.append("nightly")

    assert [ship(1, note="a"), ship(1, note="b"), ship(2)] == [
        {"order": 1, "note": "a"},
        {"order": 1, "note": "a"},
        {"order": 2, "note": ""},
    ]
    assert nightly() is nightly() is None
    assert calls == [1, 2, "nightly"]
    assert ship.__doc__ == "Ship it."


def test_misuse_is_refused():
    with pytest.raises(InvalidType, match="decorator"):
        once(lambda n: n).__enter__()

    async def later():
        pass

    with pytest.raises(NotSupported, match="sync_to_async"):
        once("k")(later)


@real
@row_locks
def test_who_comes_while_another_is_in_the_block_waits_and_gets_its_result():
    with holding(begin):
        second = Actor(sell)
        assert second.is_blocked()
    assert second.result() == "again held"
    assert Account.objects.count() == 1


@real
@row_locks
def test_when_the_first_one_rolls_back_the_second_does_it():
    with holding(begin, commit=False):
        second = Actor(sell)
        assert second.is_blocked()
    assert second.result() == "sold"
    assert Account.objects.get().owner == "1"


@real
@pytest.mark.parametrize("timeout_seconds", [0, 0.5])
def test_in_progress_elsewhere_is_an_error_after_the_timeout_and_the_callers_transaction_goes_on(timeout_seconds):
    with holding(begin):
        with pytest.raises(InProgress, match="another transaction"):
            sell(timeout_seconds=timeout_seconds)
        if VENDOR != "sqlite":
            with transaction.atomic():
                Account.objects.create(owner=f"before {timeout_seconds}")
                with pytest.raises(InProgress):
                    sell(timeout_seconds=timeout_seconds)
                Account.objects.create(owner=f"after {timeout_seconds}")
                assert sell("other", key="other") == "sold"
    if VENDOR != "sqlite":
        assert Account.objects.count() == 4
    assert sell() == "again held"


@real
@row_locks
def test_a_key_that_was_deleted_does_not_wait_for_strangers():
    for n in range(20):
        sell(f"a{n}", key=f"key-{n}")
    IdempotencyRecord.objects.all().delete()
    with holding(begin):
        for n in range(20):
            assert sell(f"b{n}", key=f"key-{n}", timeout_seconds=0) == "sold"


@real
def test_the_sessions_lock_wait_is_as_before():
    query = {"postgres": "SHOW lock_timeout", "sqlite": "PRAGMA busy_timeout"}.get(
        VENDOR, "SELECT @@SESSION.innodb_lock_wait_timeout"
    )

    def setting():
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]

    before = setting()
    with holding(begin):
        with pytest.raises(InProgress):
            sell(timeout_seconds=0.2)
        assert setting() == before
    sell("2", key="other", timeout_seconds=0)
    assert setting() == before


@real
def test_of_many_at_once_one_has_the_effect_and_all_get_its_result():
    outcomes = all_at_once([lambda n=n: sell(str(n)) for n in range(6)])
    assert sorted(outcomes) == ["again sold"] * 5 + ["sold"]
    assert Account.objects.count() == 1


@real
def test_of_many_at_once_after_expiry_one_has_the_effect():
    sell("old")
    IdempotencyRecord.objects.update(expires_at=UtcNowPlus(-1))
    outcomes = all_at_once([lambda n=n: sell(str(n), result="new") for n in range(6)])
    assert sorted(outcomes) == ["again new"] * 5 + ["new"]
    assert Account.objects.count() == 2


@real
@pytest.mark.skipif(VENDOR != "sqlite", reason="elsewhere a lock shows the newest record")
@finding("L17")
def test_a_snapshot_that_cannot_write_any_more_is_stale_and_not_in_progress(monkeypatch):
    connection.ensure_connection()  # which sets the mode
    monkeypatch.setattr(connections["default"], "transaction_mode", "DEFERRED")
    with transaction.atomic():
        assert not Account.objects.exists()
        Actor(sell, "elsewhere", key="another").result()
        with pytest.raises(StaleSnapshot, match="begin again"):
            sell()
    assert sell() == "sold"


@plain
def test_an_object_that_is_entered_again_looks_again():
    guard, runs = once("k"), []
    depth = len(connection.atomic_blocks)
    for _ in range(2):
        with guard as o:
            if not o.done:
                runs.append(o.result)
                o.result = 1
    assert runs == [None]
    IdempotencyRecord.objects.update(expires_at=UtcNowPlus(-1))
    with guard as o:
        assert (o.done, o.result) == (False, None)
    assert len(connection.atomic_blocks) == depth


@plain
def test_an_error_that_the_block_swallows_is_raised_if_it_has_undone_the_effect():
    Ticket.objects.create(number="taken")

    def sell_one():
        with once("k") as o:
            if o.done:
                return "again"
            Account.objects.create(owner="effect")
            with suppress(IntegrityError):
                Ticket.objects.create(number="taken")
            o.result = "sold"
        return "sold"

    with pytest.raises(IntegrityError) as caught:
        sell_one()
    assert "nothing is stored" in caught.value.__notes__[0]
    assert not Account.objects.exists()
    assert not IdempotencyRecord.objects.exists()


@plain
def test_a_block_may_roll_itself_back():
    with once("k"):
        Account.objects.create(owner="effect")
        transaction.set_rollback(True)
    assert not Account.objects.exists()
    assert not IdempotencyRecord.objects.exists()


@plain
def test_a_block_within_a_block_of_the_same_key_is_in_progress_and_not_done():
    with once("k") as o:
        with pytest.raises(InProgress, match="block around this one"), once("k"):
            pytest.fail("said to be done before it was")
        with once("other") as inner:
            assert not inner.done
        o.result = 1
    with once("k") as o:
        assert o.result == 1
    with pytest.raises(ZeroDivisionError), once("broken"):
        raise ZeroDivisionError
    with once("broken") as o:
        assert not o.done


@plain
@finding("L19")
def test_an_object_that_is_entered_within_its_own_block_keeps_what_the_block_has_set():
    with once("k") as o:
        o.result = "kept"
        with pytest.raises(InProgress), o:
            pytest.fail("entered twice")
        assert (o.done, o.result) == (False, "kept")
    with once("k") as again:
        assert again.result == "kept"


@real
@row_locks
@finding("item-6")
def test_an_object_that_threads_share_has_a_block_of_its_own_for_each():
    guard = once("k")

    def sell_with_it(number):
        with guard as o:
            if o.done:
                return f"again {o.result}"
            Account.objects.create(owner=number)
            o.result = number
        return o.result

    with holding(lambda: sell_with_it("held")):
        others = [Actor(sell_with_it, str(n)) for n in range(3)]
        assert all(other.is_blocked() for other in others)
    assert [other.result() for other in others] == ["again held"] * 3
    assert Account.objects.get().owner == "held"
    IdempotencyRecord.objects.update(expires_at=UtcNowPlus(-1))
    outcomes = all_at_once([lambda n=n: sell_with_it(str(n)) for n in range(6)])
    assert len({str(outcome).removeprefix("again ") for outcome in outcomes}) == 1
    assert Account.objects.count() == 2


@plain
@pytest.mark.parametrize("wrong", [b"", b"x" * 65, "text", 1])
def test_fingerprints_are_1_to_64_bytes(wrong):
    with pytest.raises((InvalidValue, InvalidType), match="fingerprint"):
        once("k", fingerprint=wrong)
