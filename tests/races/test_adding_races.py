"""A running node adds a node to its workflow while others act on it: all is decided once, and nothing is stuck."""

from functools import partial
from types import SimpleNamespace

import pytest
from django.db import connection, transaction

from jobqueue import groups, workflow
from jobqueue.context.job_context import JobContext
from jobqueue.exceptions import InvalidValue, LeaseLost
from jobqueue.models import GroupParent, Job
from jobqueue.transitions import ack, ack_many, cancel, claim, fail, reap, release, retry
from tests.app import tasks
from tests.factories import expire
from tests.groups import nodes
from tests.marks import committed
from tests.races.actors import Actor, all_at_once, holding
from tests.races.stepping import walk
from tests.settings import FULL, VENDOR

pytestmark = committed
needs_row_locks = pytest.mark.skipif(
    VENDOR == "sqlite", reason="SQLite has one writer at a time: a second transaction waits for the first"
)
STRIDE = 1 if FULL else 5
NODES = {"top": (), "beside": (), "child": ("top", "beside"), "leaf": ()}


def begin(if_failed="cancel"):
    """A workflow whose top, beside and leaf run: its id, their leases, which have no other attempt."""
    nodes.empty()
    wf = workflow("grows", if_failed=if_failed, on_done=tasks.group_done)
    for name, after in NODES.items():
        wf.add(tasks.add, 1, 2, name=name, after=after)
    number = wf.start()
    top, beside, leaf = (lease._replace(max_attempts=1) for lease in claim("default", 3, worker="w"))
    return SimpleNamespace(number=number, top=top, beside=beside, leaf=leaf)


def leaf_failed(if_failed):
    """As begin(), and the leaf has failed."""
    found = begin(if_failed)
    fail(found.leaf, error="wrong")
    return found


def add(given, *after, name="more"):
    return JobContext(given.top).group.add(tasks.add, 3, 4, name=name, after=after)


def add_twice(given):
    return add(given, name="most", *("leaf",))  # noqa: B026  after it


def add_beside(given, name="other"):
    return JobContext(given.beside).group.add(tasks.add, 5, 6, name=name, after=["leaf", "top"])


def end_top(given):
    ack(given.top)


def end_all(given):
    ack_many([given.top, given.beside, given.leaf])


def lose(given):
    expire(given.top.job_id)
    reap()


def check(given, outcomes, *, refused=(), bottom=("DONE",)):
    """No verb has failed, each pair tells the truth, and the workflow runs to its end without a sweep."""
    wrong = [outcome for outcome in outcomes if isinstance(outcome, Exception) and not isinstance(outcome, refused)]
    assert not wrong, wrong
    assert nodes.contradictions() == []
    added = [outcome for outcome in outcomes if type(outcome) is int]
    child = nodes.job("child").pk
    for job_id in added:
        # Who waits for the adding node waits for it.
        assert GroupParent.objects.filter(child_id=child, parent_id=job_id).exists()
        if Job.objects.get(pk=child).status == Job.Status.READY and nodes.job("child").gate == 0:
            assert Job.objects.get(pk=job_id).status not in (Job.Status.READY, Job.Status.PROCESSING)
    ack_many([lease for lease in (given.top, given.beside, given.leaf) if is_held(lease)])
    nodes.run_all()
    assert nodes.behind_the_gate() == []
    assert nodes.states()["child"] in bottom
    assert (nodes.ends(given.number), nodes.swept()) == (1, (0, 0))


def is_held(lease):
    return Job.objects.filter(pk=lease.job_id, status=Job.Status.PROCESSING, lock_token=lease.token).exists()


PAIRS = {
    "an add and the end of the adding node": (begin, add, end_top, partial(check, refused=LeaseLost)),
    "an add and the loss of the lease": (
        begin,
        add,
        lose,
        partial(check, refused=LeaseLost, bottom=("CANCELED", "DONE")),
    ),
    "an add and the release of the lease": (
        begin,
        add,
        lambda given: release(given.top),
        partial(check, refused=LeaseLost),
    ),
    "an add and a cancel of all": (
        begin,
        add,
        lambda given: groups.cancel(given.number),
        partial(check, refused=InvalidValue, bottom=("CANCELED",)),
    ),
    "an add and a cancel of the child": (
        begin,
        add,
        lambda given: cancel(nodes.job("child").pk),
        partial(check, bottom=("CANCELED",)),
    ),
    "an add and the end of another parent of the child": (begin, add, lambda given: ack(given.beside), check),
    "an add behind a node that ends": (
        begin,
        lambda given: add(given, "leaf"),
        lambda given: ack(given.leaf),
        check,
    ),
    "an add behind a parent that ends": (
        begin,
        lambda given: add(given, "leaf", "beside"),
        lambda given: ack_many([given.beside, given.leaf]),
        check,
    ),
    "an add behind a node that fails": (
        begin,
        lambda given: add(given, "leaf"),
        lambda given: fail(given.leaf, error="wrong"),
        partial(check, bottom=("CANCELED",)),
    ),
    "an add behind a node that fails, continue": (
        partial(begin, "continue"),
        lambda given: add(given, "leaf"),
        lambda given: fail(given.leaf, error="wrong"),
        check,
    ),
    "an add behind a node that is retried": (
        partial(leaf_failed, "hold"),
        lambda given: add(given, "leaf"),
        lambda given: retry(given.leaf.job_id),
        check,
    ),
    "an add behind all that end in one batch": (
        begin,
        lambda given: add(given, "leaf", "top"),
        end_all,
        partial(check, refused=LeaseLost),
    ),
    "two adds of one node": (begin, lambda given: add(given, "leaf"), add_twice, check),
    "adds of two nodes, one behind the other": (begin, lambda given: add(given, "leaf"), add_beside, check),
}


@needs_row_locks
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_second_comes_at_each_moment_of_the_first(pair, turned):
    prepare, first, second, then = PAIRS[pair]
    if turned:
        first, second = second, first
    assert walk(prepare, first, second, then, stride=STRIDE) >= 1


@pytest.mark.parametrize("pair", PAIRS)
def test_both_begin_at_once(pair):
    prepare, first, second, then = PAIRS[pair]
    for _ in range(3):
        given = prepare()
        then(given, all_at_once([partial(first, given), partial(second, given)]))


@needs_row_locks
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_node_waits_for_an_add_behind_it_and_decides_what_was_added(commit):
    given = begin()
    with holding(lambda: add(given, "leaf"), commit=commit):
        other = Actor(ack, given.leaf)
        assert other.is_blocked()
    other.result()
    assert "more" not in nodes.behind_the_gate()
    check(given, ())


@needs_row_locks
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_the_adding_node_waits_for_its_add(commit):
    given = begin()
    with holding(lambda: add(given), commit=commit):
        other = Actor(ack, given.top)
        assert other.is_blocked()
    other.result()
    ack(given.beside)
    assert ("child" in nodes.behind_the_gate()) is commit
    check(given, ())


@needs_row_locks
def test_an_add_holds_up_no_node_that_it_does_not_name():
    given = begin()
    with holding(lambda: add(given, "leaf")):
        Actor(ack, given.beside).result()
        assert "child" in nodes.behind_the_gate()
    check(given, ())


@needs_row_locks
def test_two_adds_at_repeatable_read_choose_different_names():
    given = begin()

    def at_repeatable_read():
        session = "SESSION CHARACTERISTICS AS" if VENDOR == "postgres" else "SESSION"
        with connection.cursor() as cursor:
            cursor.execute(f"SET {session} TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return add(given, "leaf", name=None)

    with holding(lambda: add_beside(given, name=None)):
        other = Actor(at_repeatable_read)
        assert other.is_blocked()
    other.result()
    assert {"add", "add-2"} < {*nodes.states()}
    check(given, ())


@needs_row_locks
@pytest.mark.skipif(VENDOR == "postgres", reason="it refuses to write what has changed since the snapshot")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_an_old_snapshot_of_the_caller_does_not_hide_what_was_added_behind_a_node(level):
    given = begin()

    def in_callers_transaction():
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        with transaction.atomic():
            assert Job.objects.count() == GroupParent.objects.count() + 2
            Actor(add, given, "leaf").result()
            ack(given.leaf)

    Actor(in_callers_transaction).result()
    assert "more" not in nodes.behind_the_gate()
    check(given, ())
