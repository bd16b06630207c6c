"""Verbs on a workflow at the same time: each node is decided once, none is left closed, and no deadlock is seen."""

from functools import partial
from types import SimpleNamespace

import pytest

from jobqueue import groups, workflow
from jobqueue.exceptions import InvalidValue
from jobqueue.transitions import ack, ack_many, cancel, claim, fail, retry
from tests.app import tasks
from tests.groups import nodes
from tests.marks import committed
from tests.races.actors import all_at_once
from tests.races.stepping import walk
from tests.settings import FULL, VENDOR

pytestmark = committed
needs_row_locks = pytest.mark.skipif(
    VENDOR == "sqlite", reason="SQLite has one writer at a time: a second transaction waits for the first"
)
STRIDE = 1 if FULL else 7


def begin(if_failed="cancel"):
    """A diamond whose two sides run: its id, and their leases, which have no other attempt."""
    nodes.empty()
    number = nodes.diamond(if_failed)
    ack_many(claim("default", 1, worker="w"))
    left, right = (lease._replace(max_attempts=1) for lease in claim("default", 2, worker="w"))
    return SimpleNamespace(number=number, left=left, right=right, bottom=nodes.job("bottom").pk)


def left_failed(if_failed):
    """As begin(), and the left side has failed."""
    found = begin(if_failed)
    fail(found.left, error="wrong")
    return found


def bottom_canceled():
    """Two nodes that run, their canceled child, and another node that runs, which keeps the workflow from ending."""
    nodes.empty()
    wf = workflow("publish", on_done=tasks.group_done)
    sides = [wf.add(tasks.add, 1, 2, name=name) for name in ("left", "right", "beside")]
    wf.add(tasks.tell_parents, after=sides[:2], name="bottom")
    number = wf.start()
    left, right, beside = claim("default", 3, worker="w")
    found = SimpleNamespace(number=number, left=left, right=right, beside=beside, bottom=nodes.job("bottom").pk)
    assert cancel(found.bottom)
    return found


def all_failed(if_failed):
    """As left_failed(), and the right side has ended: the workflow has ended, unless its bottom is held."""
    found = left_failed(if_failed)
    ack(found.right)
    return found


def ack_left(given):
    ack(given.left)


def ack_right(given):
    ack(given.right)


def fail_left(given):
    fail(given.left, error="wrong")


def fail_right(given):
    fail(given.right, error="wrong")


def cancel_bottom(given):
    assert cancel(given.bottom)


def cancel_all(given):
    groups.cancel(given.number)


def retry_left(given):
    assert retry(given.left.job_id)


def retry_bottom(given):
    assert retry(given.bottom)


def resume(given):
    return groups.resume(given.number)


def check(given, outcomes, *, refused=(), finally_=None, ends=1):
    """No verb has failed, and the workflow runs to its end without a sweep."""
    wrong = [outcome for outcome in outcomes if isinstance(outcome, Exception) and not isinstance(outcome, refused)]
    assert not wrong, wrong
    assert nodes.contradictions() == []
    nodes.run_all()
    assert nodes.behind_the_gate() == []
    if hasattr(given, "beside"):
        ack(given.beside)
    if finally_ is not None:
        assert nodes.states()["bottom"] in finally_
    assert nodes.ends(given.number) in (ends, *((ends + 1,) if refused else ()))
    assert nodes.swept() == (0, 0)


def check_held(given, outcomes):
    """No verb has failed, and the bottom waits until the workflow is resumed."""
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)], outcomes
    assert nodes.contradictions() == []
    nodes.run_all()
    assert nodes.swept() == (0, 0)
    assert (nodes.behind_the_gate(), nodes.job("bottom").wait_reason) == (["bottom"], "parents failed")
    assert groups.resume(given.number).runs
    check(given, (), finally_=("DONE",))


PAIRS = {
    "the last two parents": (begin, ack_left, ack_right, partial(check, finally_=("DONE",))),
    "two failing parents": (begin, fail_left, fail_right, partial(check, finally_=("CANCELED",))),
    "a failure and an ack": (begin, fail_left, ack_right, partial(check, finally_=("CANCELED",))),
    "a failure and an ack, continue": (
        partial(begin, "continue"),
        fail_left,
        ack_right,
        partial(check, finally_=("DONE",)),
    ),
    "a failure and an ack, hold": (partial(begin, "hold"), fail_left, ack_right, check_held),
    "two failing parents, hold": (partial(begin, "hold"), fail_left, fail_right, check_held),
    "the last ack and a cancel of the child": (
        partial(left_failed, "continue"),
        ack_right,
        cancel_bottom,
        partial(check, finally_=("CANCELED",)),
    ),
    "the last ack and a cancel of all": (
        partial(left_failed, "continue"),
        ack_right,
        cancel_all,
        partial(check, finally_=("CANCELED",)),
    ),
    "the last ack and a retry of the canceled child": (
        bottom_canceled,
        lambda given: ack_many([given.left, given.right]),
        retry_bottom,
        partial(check, finally_=("DONE",)),
    ),
    "the last ack and a resume": (partial(left_failed, "hold"), ack_right, resume, partial(check, finally_=("DONE",))),
    "the last failure and a retry, hold": (
        partial(left_failed, "hold"),
        fail_right,
        retry_left,
        check_held,
    ),
    "two resumes": (partial(all_failed, "cancel"), resume, resume, partial(check, finally_=("DONE",), ends=2)),
    "two resumes, hold": (partial(all_failed, "hold"), resume, resume, partial(check, finally_=("DONE",))),
    "a resume and a retry, hold": (
        partial(all_failed, "hold"),
        resume,
        lambda given: retry(given.left.job_id),
        partial(check, finally_=("DONE",)),
    ),
    "a resume and a cancel of all, hold": (
        partial(all_failed, "hold"),
        resume,
        cancel_all,
        partial(check, refused=(InvalidValue,)),
    ),
}


@needs_row_locks
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_second_comes_at_each_moment_of_the_first(pair, turned):
    prepare, first, second, then = PAIRS[pair]
    if turned:
        first, second = second, first
    assert walk(prepare, first, second, then, stride=STRIDE) > 1


@pytest.mark.parametrize("pair", PAIRS)
def test_both_begin_at_once(pair):
    prepare, first, second, then = PAIRS[pair]
    for _ in range(3):
        given = prepare()
        then(given, all_at_once([partial(first, given), partial(second, given)]))
