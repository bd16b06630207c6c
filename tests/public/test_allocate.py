"""take(): rows of any table, each handed out exactly once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction
from django.db.models import Count, F, QuerySet, Value, Window
from django.db.models.functions import Concat, RowNumber

from jobqueue.allocate import take
from jobqueue.db import vendor
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue
from jobqueue.models import IdempotencyRecord
from tests.app.models import Ticket
from tests.blocking import is_held_up
from tests.locks.helpers import repeatable_read
from tests.marks import committed, finding
from tests.patience import patient
from tests.races.actors import Actor, all_at_once, holding
from tests.settings import VENDOR

SOLD = {"sold": True, "buyer": "ann"}


@pytest.fixture
def tickets():
    """Make tickets t000, t001 ... that are free."""
    return lambda count: Ticket.objects.bulk_create([Ticket(number=f"t{n:03d}") for n in range(count)])


def free():
    return Ticket.objects.filter(sold=False).order_by("number")


def numbers(rows):
    return [row.number for row in rows]


def names(groups):
    return [group.name for group in groups]


@contextmanager
def threads(count):
    """A pool whose threads close their connections."""
    with ThreadPoolExecutor(count) as pool:

        def submit(function, *args, **kwargs):
            def run():
                try:
                    return function(*args, **kwargs)
                finally:
                    connections.close_all()

            return pool.submit(run)

        yield submit


@contextmanager
def held_open(order=("number",), **arguments):
    """Another connection takes and leaves its transaction open until the block says commit or rollback."""
    taken, end, how = threading.Event(), threading.Event(), []

    def holder():
        with transaction.atomic():
            rows = take(free().order_by(*order), **arguments)
            taken.set()
            end.wait()
            if how == ["rollback"]:
                transaction.set_rollback(True)
        return rows

    def finish(word):
        how.append(word)
        end.set()
        return running.result(patient())

    with threads(1) as submit:
        running = submit(holder)
        assert taken.wait(patient())
        try:
            yield finish
        finally:
            end.set()


def stays_waiting(future):
    """It waits for the transaction of the other one."""
    assert is_held_up(future.done)


@pytest.mark.django_db
class TestRows:
    def test_come_in_the_order_of_the_queryset_with_the_changes_applied(self, tickets):
        tickets(3)
        first, second = take(free(), 2, changes=SOLD)
        assert (first.number, second.number) == ("t000", "t001")
        assert first.sold is True
        assert first.buyer == "ann"
        assert numbers(Ticket.objects.filter(**SOLD).order_by("number")) == ["t000", "t001"]

    def test_come_once_fewer_when_short_and_none_when_gone(self, tickets):
        tickets(3)
        assert numbers(take(free(), changes=SOLD)) == ["t000"]
        assert numbers(take(free(), 5, changes=SOLD)) == ["t001", "t002"]
        assert take(free(), 5, changes=SOLD) == []

    def test_come_from_a_database_without_skip_locked(self, tickets, monkeypatch):
        monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
        tickets(1)
        assert len(take(free(), 2, changes=SOLD)) == 1

    def test_come_by_key_without_an_order(self, tickets):
        tickets(2)
        assert numbers(take(Ticket.objects.filter(sold=False), changes=SOLD)) == ["t000"]

    def test_show_what_the_database_computed(self, tickets):
        tickets(2)
        rows = take(free(), 2, changes={"sold": True, "buyer": Concat(Value("for "), F("number"))})
        assert [row.buyer for row in rows] == ["for t000", "for t001"]

    def test_show_values_of_the_type_of_their_field(self, tickets):
        tickets(1)
        (row,) = take(free(), changes={"sold": True, "sold_at": "2026-01-02T03:04:05Z"})
        assert row.sold_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def test_that_changed_since_they_were_read_are_not_handed_out(self, tickets, monkeypatch):
        tickets(2)
        Ticket.objects.filter(number="t000").update(**SOLD)
        everything = Ticket.objects.order_by("number")
        monkeypatch.setattr(
            type(vendor("default").locks), "lock_first", lambda self, queryset, count, **_: everything[:count]
        )
        monkeypatch.setattr(QuerySet, "select_for_update", lambda queryset, **options: everything)
        with pytest.raises(DatabaseBusy):
            take(free().filter(number__in=["t000", "t001"]), changes={"sold": True, "buyer": "bob"})
        assert Ticket.objects.get(number="t000").buyer == "ann"


@pytest.mark.django_db
class TestRequestId:
    def test_gives_the_same_rows_again(self, tickets):
        tickets(5)
        rows = take(free(), 2, changes=SOLD, request_id="r1")
        again = take(free(), 4, changes={"sold": True, "buyer": "bob"}, request_id=b"r1")
        assert numbers(again) == numbers(rows) == ["t000", "t001"]
        assert {row.buyer for row in again} == {"ann"}
        assert free().count() == 3

    def test_shows_the_rows_as_they_are_now_without_those_that_were_deleted(self, tickets):
        tickets(2)
        take(free(), 2, changes=SOLD, request_id="r1")
        Ticket.objects.filter(number="t000").delete()
        Ticket.objects.update(buyer="bob")
        assert [row.buyer for row in take(free(), changes=SOLD, request_id="r1")] == ["bob"]

    def test_that_got_nothing_may_get_something_later(self, tickets):
        assert take(free(), changes=SOLD, request_id="r1") == []
        assert not IdempotencyRecord.objects.exists()
        tickets(1)
        assert numbers(take(free(), changes=SOLD, request_id="r1")) == ["t000"]

    def test_is_compared_byte_for_byte(self, tickets):
        tickets(4)
        rows = [take(free(), changes=SOLD, request_id=key)[0] for key in ("a", "A", "a ", "ä")]
        assert numbers(rows) == ["t000", "t001", "t002", "t003"]

    def test_of_another_table_is_another_request(self, tickets):
        tickets(1)
        Group.objects.create(name="free")
        take(free(), changes=SOLD, request_id="r1")
        assert len(take(Group.objects.filter(name="free"), changes={"name": "taken"}, request_id="r1")) == 1

    def test_is_forgotten_when_the_caller_rolls_back(self, tickets):
        tickets(1)
        with transaction.atomic():
            take(free(), changes=SOLD, request_id="r1")
            transaction.set_rollback(True)
        assert free().count() == 1
        assert not IdempotencyRecord.objects.exists()


@pytest.mark.django_db
class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"queryset": "tickets"}, InvalidType),
            ({"queryset": Ticket.objects}, InvalidType),
            ({"queryset": Ticket.objects.all()[:5]}, InvalidValue),
            ({"queryset": Ticket.objects.values("number")}, InvalidValue),
            ({"queryset": Ticket.objects.all().union(Ticket.objects.all())}, InvalidValue),
            ({"n": 0}, InvalidValue),
            ({"n": 10_001}, InvalidValue),
            ({"n": True}, InvalidType),
            ({"changes": {}}, InvalidValue),
            ({"changes": None}, InvalidType),
            ({"changes": {"nothing": 1}}, InvalidValue),
            ({"changes": {"id": 1}}, InvalidValue),
            ({"changes": {1: 1}}, InvalidValue),
            ({"request_id": ""}, InvalidValue),
            ({"request_id": "x" * 65}, InvalidValue),
            ({"request_id": 7}, InvalidType),
        ],
    )
    def test_say_what_is_wrong_and_write_nothing(self, tickets, arguments, error):
        tickets(1)
        given = {"queryset": free(), "changes": SOLD, **arguments}
        with pytest.raises(error, match=r"Nothing was written"):
            take(given.pop("queryset"), **given)
        assert free().count() == 1

    @finding("L22")
    @pytest.mark.parametrize(
        "windowed",
        [
            lambda rows, window: rows.annotate(place=window),
            lambda rows, window: rows.annotate(place=window).filter(place__lte=2),
            lambda rows, window: rows.order_by(window),
        ],
        ids=["annotated", "filtered", "ordered"],
    )
    def test_a_window_function_is_refused_for_its_rows_cannot_be_locked(self, tickets, windowed):
        tickets(3)
        window = Window(RowNumber(), partition_by="buyer", order_by="number")
        with pytest.raises(InvalidValue, match=r"window function.*Nothing was written"):
            take(windowed(Ticket.objects.filter(sold=False), window), changes=SOLD)
        assert free().count() == 3

    def test_changes_that_leave_a_row_in_the_queryset_would_sell_it_twice(self, tickets):
        tickets(1)
        with pytest.raises(InvalidValue, match="handed out again"):
            take(free(), changes={"buyer": "ann"}, request_id="r1")
        assert Ticket.objects.get().buyer == ""
        assert not IdempotencyRecord.objects.exists()


@committed
class TestRaces:
    def test_every_row_goes_to_one_of_many_and_none_is_left(self, tickets):
        tickets(60)
        start = threading.Barrier(6)

        def shopper(name):
            start.wait(patient())
            rows, batch = [], True
            while batch:
                rows += (batch := take(free(), 4, changes={"sold": True, "buyer": name}))
            return name, numbers(rows)

        with threads(6) as submit:
            found = [f.result(patient()) for f in [submit(shopper, f"buyer {i}") for i in range(6)]]
        assert sorted(number for _, got in found for number in got) == [f"t{i:03d}" for i in range(60)]
        for name, got in found:
            assert numbers(Ticket.objects.filter(buyer=name).order_by("number")) == sorted(got)

    def test_twins_of_one_request_get_the_same_rows(self, tickets):
        tickets(20)
        start = threading.Barrier(4)

        def twin(request_id):
            start.wait(patient())
            return numbers(take(free(), 2, changes=SOLD, request_id=request_id))

        for attempt in range(5):
            with threads(4) as submit:
                results = [f.result(patient()) for f in [submit(twin, f"r{attempt}") for _ in range(4)]]
            assert results == [results[0]] * 4
        assert free().count() == 10

    def test_a_twin_of_an_open_request_waits_and_gets_its_rows(self, tickets):
        tickets(3)
        with held_open(changes=SOLD, request_id="r1") as finish, threads(1) as submit:
            late = submit(take, free(), changes=SOLD, request_id="r1")
            stays_waiting(late)
            finish("commit")
            assert numbers(late.result(patient())) == ["t000"]
        assert free().count() == 2

    def test_a_twin_of_a_request_that_is_rolled_back_is_served_itself(self, tickets):
        tickets(1)
        with held_open(changes=SOLD, request_id="r1") as finish, threads(1) as submit:
            late = submit(take, free(), changes=SOLD, request_id="r1")
            stays_waiting(late)
            finish("rollback")
            assert numbers(late.result(patient())) == ["t000"]

    def test_a_callers_transaction_survives_a_lost_race(self, tickets):
        tickets(2)

        def late_caller():
            with transaction.atomic():
                Group.objects.create(name="before")
                rows = take(free(), changes={"sold": True, "buyer": "bob"}, request_id="r1")
                Group.objects.create(name="after")
            return rows

        with held_open(changes=SOLD, request_id="r1") as finish, threads(1) as submit:
            late = submit(late_caller)
            stays_waiting(late)
            finish("commit")
            (row,) = late.result(patient())
        assert (row.number, row.buyer, row.sold) == ("t000", "ann", True)
        assert set(Group.objects.values_list("name", flat=True)) == {"before", "after"}

    @pytest.mark.parametrize(("end", "left"), [("commit", []), ("rollback", ["t000"])])
    def test_the_last_row_is_sold_out_only_when_its_taker_commits(self, tickets, end, left):
        tickets(1)
        with held_open(changes=SOLD) as finish, threads(1) as submit:
            late = submit(take, free(), changes=SOLD)
            stays_waiting(late)
            finish(end)
            assert numbers(late.result(patient())) == left

    @pytest.mark.parametrize("order", [["number"], ["buyer", "-number"]], ids=["by index", "sorted"])
    def test_rows_that_others_hold_are_skipped(self, tickets, order):
        if not connection.features.has_select_for_update_skip_locked:
            pytest.skip("one writer at a time: the whole database is held, not rows")
        tickets(60)
        with held_open(order, n=30, changes=SOLD) as finish:
            assert numbers(take(free().order_by(*order), changes=SOLD)) == ["t030" if order == ["number"] else "t029"]
            assert len(take(free(), 29, changes=SOLD)) == 29
            finish("commit")

    def test_a_few_rows_are_skipped_as_well(self, tickets):
        if not connection.features.has_select_for_update_skip_locked:
            pytest.skip("one writer at a time: the whole database is held, not rows")
        tickets(2)
        with held_open(changes=SOLD) as finish:
            assert numbers(take(free(), changes=SOLD)) == ["t001"]
            finish("commit")


@pytest.mark.django_db
def test_a_join_that_repeats_rows_is_refused_where_it_would_hand_one_out_twice():
    kinds = list(Permission.objects.all()[:2])
    for name in ("a", "b"):
        Group.objects.create(name=name).permissions.set(kinds)
    rows = Group.objects.filter(permissions__in=kinds).exclude(name__startswith="taken").order_by("name")
    taken = {"name": Concat(Value("taken "), F("name"))}
    with pytest.raises(InvalidValue, match="more than once"):
        take(rows, 2, changes=taken)
    for refused in (rows.distinct(), rows.annotate(count=Count("permissions"))):
        with pytest.raises(InvalidValue, match=r"Exists\(\)"):
            take(refused, 1, changes=taken)
    assert names(rows.distinct()) == ["a", "b"]
    assert names(take(rows, 1, changes=taken)) == ["taken a"]
    assert names(take(rows, 1, changes=taken)) == ["taken b"]


def entries(*names):
    """Log entries of one user and kind, and a queryset of those that are free, which joins both."""
    # Tables of Django's own apps are not emptied between tests.
    LogEntry.objects.all().delete()
    user, _ = User.objects.get_or_create(username="ann")
    kind, _ = ContentType.objects.get_or_create(app_label="a", model="b")
    for name in names:
        LogEntry.objects.create(object_id=name, action_flag=1, user=user, content_type=kind)
    rows = LogEntry.objects.filter(user__username="ann", object_repr="").order_by("content_type__model", "pk")
    return rows.select_related("content_type")


def entry(rows):
    """The name of the one that is taken."""
    (row,) = take(rows, 1, changes={"object_repr": "taken"})
    assert (row.object_repr, row.content_type.model) == ("taken", "b")
    return row.object_id


def second_of_two():
    """Whom a second buyer gets, while the first one's transaction is open; all lock rows of one user."""
    rows = entries("a", "b")
    with holding(lambda: entry(rows)) as first:
        second = Actor(entry, rows)
        assert second.done.wait(patient()), "it waits for a row that only the join has locked"
    return first, second.result()


@committed
@pytest.mark.skipif(VENDOR in ("sqlite", "mariadb"), reason="SQLite has no row locks; MariaDB is below")
def test_rows_that_the_queryset_joins_are_not_locked():
    assert second_of_two() == ("a", "b")


@committed
@pytest.mark.skipif(VENDOR != "mariadb", reason="the others can name the table to lock")
class TestJoinsOnMariaDB:
    @finding("L21")
    def test_rows_that_the_queryset_joins_are_not_locked(self):
        assert second_of_two() == ("a", "b")

    @finding("L21")
    def test_somebody_who_writes_the_joined_row_is_not_waited_for(self):
        rows = entries("a")
        with holding(lambda: User.objects.update(first_name="Ann")):
            buyer = Actor(entry, rows)
            assert buyer.done.wait(patient())
        assert buyer.result() == "a"

    @pytest.mark.parametrize(("commit", "left"), [(True, []), (False, ["a"])])
    def test_the_last_row_is_sold_out_only_when_its_taker_commits(self, commit, left):
        rows = entries("a")
        with holding(lambda: entry(rows), commit=commit):
            late = Actor(lambda: [row.object_id for row in take(rows, 1, changes={"object_repr": "late"})])
            assert late.is_blocked()
        assert late.result() == left

    def test_what_an_old_snapshot_shows_as_free_is_not_handed_out_again(self):
        rows = entries("a", "b")
        with repeatable_read():
            assert rows.count() == 2
            assert Actor(entry, rows).result() == "a"
            assert entry(rows) == "b"
        assert rows.count() == 0

    def test_every_row_goes_to_one_of_many(self):
        rows = entries(*map(str, range(40)))

        def shopper():
            found, batch = [], True
            while batch:
                found += (batch := take(rows, 3, changes={"object_repr": "taken"}))
            return [row.object_id for row in found]

        outcomes = all_at_once([shopper] * 6)
        assert sorted(name for names in outcomes for name in names) == sorted(map(str, range(40)))
