"""What the end of a node locks: nothing that others need who have nothing to do with it, and no deadlock is seen."""

from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import group, groups, workflow
from jobqueue.models import GroupParent, Job
from jobqueue.signals import transaction_retried
from jobqueue.transitions import ack, ack_many, cancel, claim, dependants, fail, retry
from tests.app import tasks
from tests.factories import claim_one, make_job
from tests.groups import nodes
from tests.marks import committed
from tests.races.actors import Actor, Stopped, holding
from tests.settings import VENDOR

pytestmark = committed
needs_row_locks = pytest.mark.skipif(
    VENDOR == "sqlite", reason="SQLite has one writer at a time: a second transaction waits for the first"
)


def started(parents, if_failed="cancel"):
    """A workflow of nodes with these names, each after those of its list; its id. Those without parents come first."""
    wf = workflow("locks", if_failed=if_failed, on_done=tasks.group_done)
    for name, after in parents.items():
        wf.add(tasks.add, 1, 2, name=name, after=after)
    return wf.start()


def running(count):
    """Leases of the next jobs, which have no other attempt."""
    return [lease._replace(max_attempts=1) for lease in claim("default", count, worker="w")]


def check_ended(number, **wanted):
    """All has run to the end without a sweep, and these nodes have ended so."""
    assert nodes.contradictions() == []
    nodes.run_all()
    assert (nodes.behind_the_gate(), nodes.ends(number), nodes.swept()) == ([], 1, (0, 0))
    found = nodes.states()
    assert {name: found[name] for name in wanted} == wanted


WIDE = {"a": (), "b": (), "c": (), "child": ("a", "b", "c"), "leaf": ()}


@needs_row_locks
def test_the_end_of_a_parent_blocks_nobody_but_the_parent_that_it_keeps_outstanding():
    first = started(WIDE)
    mine = running(4)
    second = started(WIDE)
    others = running(4)
    make_job()
    with holding(lambda: ack(mine[0])):
        Actor(ack, mine[1]).result()
        Actor(ack, mine[3]).result()  # a node that is no parent
        Actor(ack_many, others).result()
        Actor(ack, claim_one()).result()
        Actor(started, WIDE).result()
    ack(mine[2])
    nodes.run_all()
    assert [nodes.ends(number) for number in (first, second)] == [1, 1]
    assert nodes.behind_the_gate() == []


@needs_row_locks
def test_who_holds_a_node_that_waits_holds_up_only_the_last_parent():
    number = started({"a": (), "b": (), "child": ("a", "b")})
    first, second = running(2)
    with holding(lambda: cancel(nodes.job("child").pk), commit=False):
        Actor(ack, first).result()
        last = Actor(ack, second)
        assert last.is_blocked()
    last.result()
    check_ended(number, child="DONE")


@needs_row_locks
@pytest.mark.parametrize("commit", [True, False])
def test_the_last_two_parents_wait_for_each_other_and_one_opens_the_node(commit):
    number = started({"a": (), "b": (), "child": ("a", "b")})
    first, second = running(2)
    with holding(lambda: ack(first), commit=commit):
        other = Actor(ack, second)
        assert other.is_blocked()
        assert nodes.behind_the_gate() == ["child"]
    other.result()
    assert nodes.behind_the_gate() == ([] if commit else ["child"])
    if not commit:
        ack(first)
    check_ended(number, child="DONE")


@needs_row_locks
def test_a_node_stays_closed_until_the_ends_of_all_parents_are_committed():
    moments = 0
    while True:
        nodes.empty()
        number = started({"a": (), "b": (), "child": ("a", "b")})
        first, second = running(2)
        stopping = Stopped(1 + 2 * moments, lambda: ack(first))  # noqa: B023  at once
        other = Actor(ack, second)
        other.is_blocked()
        too_early = nodes.states()["a"] != "DONE" and nodes.behind_the_gate() == []
        stopping.go_on()
        stopping.result()
        other.result()
        assert not too_early, f"at moment {moments}"
        check_ended(number, child="DONE")
        if not stopping.stopped:
            break
        moments += 1
    assert moments > 5


LEVELS = {"read committed": "READ COMMITTED", "repeatable read": "REPEATABLE READ"}


@needs_row_locks
@pytest.mark.skipif(VENDOR == "postgres", reason="it refuses to write what has changed since the snapshot")
@pytest.mark.parametrize("level", LEVELS)
def test_an_old_snapshot_of_the_caller_does_not_hide_the_ends_of_other_parents(level):
    number = started(WIDE)
    leases = running(4)

    def in_callers_transaction():
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {LEVELS[level]}")
        with transaction.atomic():
            assert Job.objects.count() == GroupParent.objects.count() + 2
            for lease in leases[1:]:
                Actor(ack, lease).result()
            ack(leases[0])

    Actor(in_callers_transaction).result()
    assert nodes.behind_the_gate() == []
    check_ended(number, child="DONE")


@needs_row_locks
@pytest.mark.skipif(VENDOR == "postgres", reason="it refuses to write what has changed since the snapshot")
def test_a_resume_with_an_old_snapshot_is_none_after_another_resume():
    number = started({"a": (), "child": ("a",)})
    fail(running(1)[0], error="wrong")

    def in_callers_transaction():
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic():
            Job.objects.count()
            Actor(groups.resume, number).result()
            groups.resume(number)

    Actor(in_callers_transaction).result()
    assert nodes.contradictions() == []
    nodes.run_all()
    assert (nodes.ends(number), nodes.states()["child"]) == (2, "DONE")


@contextmanager
def redone():
    """The codes of the transactions that are redone in the block, by whatever thread."""
    codes = []

    def hear(code, **facts):
        codes.append(code)

    transaction_retried.connect(hear)
    try:
        yield codes
    finally:
        transaction_retried.disconnect(hear)


TRIANGLE = {"top": (), "middle": ("top",), "end": ("top", "middle")}


@needs_row_locks
@pytest.mark.parametrize("if_failed", ["cancel", "continue"])
def test_the_end_of_a_parent_and_a_cancel_of_its_child_which_have_a_child_in_common(if_failed):
    """The one must not wait for the row of the middle while the other waits for what it has locked of the end."""
    moments = 0
    while True:
        nodes.empty()
        number = started(TRIANGLE, if_failed)
        (lease,) = running(1)
        middle = nodes.job("middle").pk
        with redone() as codes:
            stopping = Stopped(1 + 2 * moments, lambda: ack(lease))  # noqa: B023  at once
            other = Actor(cancel, middle)
            other.is_blocked()
            stopping.go_on()
            stopping.result()
            assert other.result() is True
        assert codes == [], f"at moment {moments}"
        check_ended(number, middle="CANCELED", end="DONE" if if_failed == "continue" else "CANCELED")
        if not stopping.stopped:
            break
        moments += 1
    assert moments > 5


def group_statements(work):
    with CaptureQueriesContext(connection) as captured:
        work()
    return [query["sql"] for query in captured if "job_group" in query["sql"]]


def test_the_ack_of_a_job_without_a_group_asks_nothing_about_groups():
    started(WIDE)
    running(4)
    for _ in range(4):
        make_job()
    one, two, three, four = claim("q", 4, worker="w")
    assert group_statements(lambda: ack(one)) == []
    assert group_statements(lambda: ack_many([two, three])) == []
    assert group_statements(lambda: fail(four._replace(max_attempts=1), error="wrong")) == []
    assert group_statements(lambda: retry(four.job_id)) == []
    assert group_statements(lambda: cancel(four.job_id)) == []


def test_the_end_of_a_member_that_is_no_parent_asks_nothing_about_pairs():
    with group("plain") as g:
        g.add_many(tasks.add, [(number, 1) for number in range(3)])
    first, second, third = running(3)
    statements = group_statements(lambda: ack(first)) + group_statements(lambda: ack_many([second, third]))
    assert [sql for sql in statements if "job_group_parent" in sql] == []
    started({"a": (), "leaf": ("a",)})
    ack(running(1)[0])
    statements = group_statements(lambda: ack(running(1)[0]))
    assert [sql for sql in statements if "job_group_parent" in sql] == []


DEEP = {
    "a": (), "b": (),
    "a1": ("a",), "a2": ("a1",), "a3": ("a2",),
    "b1": ("b",), "b2": ("b1",), "b3": ("b2",),
    "both": ("a1", "b3"), "last": ("both", "a3"),
}  # fmt: skip


@needs_row_locks
def test_two_parents_that_fail_and_have_long_chains_in_common(monkeypatch):
    """Whichever is stopped wherever, each node behind them is canceled once, and nothing waits crosswise."""
    monkeypatch.setattr(dependants, "LEVELS", 1)
    moments = 0
    while True:
        nodes.empty()
        number = started(DEEP)
        first, second = running(2)
        with redone() as codes:
            stopping = Stopped(1 + 3 * moments, lambda: fail(first, error="wrong"))  # noqa: B023  at once
            other = Actor(fail, second, error="wrong")
            other.is_blocked()
            stopping.go_on()
            stopping.result()
            other.result()
        assert codes == [], f"at moment {moments}"
        check_ended(number, a3="CANCELED", b3="CANCELED", both="CANCELED", last="CANCELED")
        if not stopping.stopped:
            break
        moments += 1
    assert moments > 5
