"""The monitor's thread for gates looks often where jobs wait, and hardly where none does."""

from types import SimpleNamespace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import flow, task
from jobqueue.worker.monitor import housekeeping
from jobqueue.worker.monitor.housekeeping import GateOpener
from jobqueue.worker.shared.scoreboard import Scoreboard, State
from tests.clocks import Clock
from tests.gates import jobs
from tests.gates.helpers import add, taken, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(housekeeping, "time", SimpleNamespace(monotonic=made))
    return made


@pytest.fixture
def board():
    made = Scoreboard(2, 1)
    for slot in made.slots:
        slot.state, slot.room = State.RUNNING, 1
    return made


@pytest.fixture
def woken(board, monkeypatch):
    """The children that were woken."""
    found = []
    monkeypatch.setattr(board.wakeups, "_wake", found.append)
    return found


@pytest.fixture
def opener(board, clock):
    """One that has had nothing to do so far."""
    made = GateOpener("default", board, lambda: None, None)
    made.round()
    clock.go(0.06)
    return made


def statements(opener):
    with CaptureQueriesContext(connection) as seen:
        opener.round()
    return len(seen)


def test_nothing_is_read_where_nothing_waits_but_once_a_second(opener, clock):
    assert [statements(opener) for _ in range(5)] == [0] * 5
    clock.go(1)
    assert statements(opener) > 0
    assert statements(opener) == 0


def test_a_gate_that_a_child_has_closed_is_looked_at_with_the_next_round(opener, board, clock):
    board.header.gates_closed = 1
    opener.round()
    assert board.header.gates_closed == 0
    for _ in range(20):
        clock.go(0.06)
        assert statements(opener) > 0
    clock.go(housekeeping.BUSY_SECONDS + 1)
    opener.round()
    assert statements(opener) == 0


def test_what_an_operator_changes_is_told_to_all_children(opener, board, clock, woken):
    board.slots[0].ruled = 1
    opener.round()
    clock.go(0.11)
    turn = board.header.rules_turn
    flow.pause("q", reason="r")
    opener.round()
    assert board.header.rules_turn == turn + 1
    assert woken == [0, 1]
    clock.go(0.11)
    opener.round()
    assert board.header.rules_turn == turn + 1


def test_a_child_that_has_ended_knows_no_limit(opener, board):
    board.slots[0].ruled, board.slots[0].state = 1, State.EMPTY
    assert statements(opener) == 0


def test_the_children_are_told_before_anything_is_opened_for_a_change(opener, board, clock, woken, monkeypatch):
    work = task(queue_name="q")(jobs.work)
    ids = add(2, work)
    flow.pause("q", task=work, reason="r")
    assert taken() == []
    assert waiting() == ids
    clock.go(1)
    opener.round()
    flow.resume("q", task=work)
    turn, seen = board.header.rules_turn, []
    monkeypatch.setattr("jobqueue.gates.kinds.open_first", lambda *_, **__: seen.append(board.header.rules_turn) or 0)
    clock.go(0.06)
    opener.round()
    assert seen[0] == turn + 1


def test_a_worker_without_reaper_opens_nothing_but_tells_its_children(board, clock, woken):
    opener = GateOpener("default", board, lambda: None, None, opens=False)
    work = task(queue_name="q")(jobs.work)
    ids = add(2, work)
    flow.pause("q", task=work, reason="r")
    assert taken() == []
    board.header.gates_closed = 1
    opener.round()
    flow.resume("q", task=work)
    clock.go(0.11)
    turn = board.header.rules_turn
    opener.round()
    assert board.header.rules_turn == turn + 1
    assert waiting() == ids


def test_the_thread_starts_when_a_child_has_closed_a_gate_or_knows_a_limit(board, monkeypatch):
    opener, started = GateOpener("default", board, lambda: None, None), []
    monkeypatch.setattr(opener.thread, "start", lambda: started.append(True))
    opener.wake_if_asked()
    assert started == []
    board.header.gates_closed = 1
    opener.wake_if_asked()
    board.header.gates_closed, board.slots[1].ruled = 0, 1
    opener.wake_if_asked()
    assert started == [True, True]


def test_the_thread_starts_for_jobs_that_waited_before_the_worker_began(board, monkeypatch):
    work = task(queue_name="q", concurrency_limit=1)(jobs.work)
    add(2, work)
    assert len(taken() + taken()) == 1
    opener, started = GateOpener("default", board, lambda: None, None), []
    monkeypatch.setattr(opener.thread, "start", lambda: started.append(True))
    opener.wake()
    assert started == [True]
