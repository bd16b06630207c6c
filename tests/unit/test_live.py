"""When /live says that a worker should be started again, by what its processes have written to the scoreboard."""

import time

import pytest

from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Hold, Scoreboard, State
from jobqueue.worker.shared.worker_options import LIVE_SECONDS_MIN, Options
from tests.process.probe import free_port
from tests.proofs.test_probes import get

LIMIT = 60.0


class Board:
    """A worker with two children of two threads each, that have just looked for jobs."""

    def __init__(self):
        self.scoreboard = Scoreboard(2, 2)
        self.header = self.scoreboard.header
        for number, slot in enumerate(self.scoreboard.slots):
            slot.state, slot.pid, slot.level, slot.room = State.RUNNING, 100 + number, 2, 2
            slot.looked_at = time.monotonic()
        self.slot, self.leases = self.scoreboard.slots[1], self.scoreboard.lease_slots[1]
        Probe(self.scoreboard, port := free_port(), live_seconds=LIMIT)
        self._port = port

    def be_silent(self, seconds=LIMIT + 5):
        """The second child has not looked for so long."""
        self.slot.looked_at = time.monotonic() - seconds

    def run(self, jobs):
        """The second child runs so many jobs."""
        self.slot.room = 2 - jobs
        for lease_slot in self.leases[:jobs]:
            lease_slot.hold = Hold.RUNNING

    def live(self):
        """The answer of /live, which needs a monitor that works."""
        self.header.monitor_ticked_at = time.monotonic()
        return get(self._port, "/live")


@pytest.fixture
def board():
    """A healthy worker."""
    return Board()


def test_a_worker_whose_children_look_for_jobs_is_live(board):
    board.be_silent(LIMIT - 20)
    assert board.live() == (200, "live\n")


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_child_with_a_free_thread_that_does_not_look_for_jobs_is_not_live(board, jobs):
    board.run(jobs)
    board.be_silent()
    status, words = board.live()
    assert status == 503
    assert words.startswith("process 101 has not looked for jobs for 6")


def test_a_child_whose_threads_are_all_busy_is_live_even_if_a_job_keeps_the_interpreter(board):
    board.run(2)
    board.be_silent()
    assert board.live()[0] == 200


def test_a_child_that_was_busy_when_its_claim_hung_is_not_live_once_a_thread_is_free(board):
    board.run(2)
    board.be_silent()
    board.leases[0].hold = Hold.FREE
    assert board.live()[0] == 503


def test_a_busy_child_that_a_signal_has_stopped_is_not_live(board):
    board.run(2)
    board.be_silent()
    board.slot.paused = 1
    assert board.live() == (503, "process 101 has not looked for jobs for 65 s: a signal has stopped it\n")


def test_without_a_database_a_worker_stays_live_and_has_the_whole_time_after_it(board):
    board.be_silent(3600)
    board.header.database_down = 1
    assert board.live()[0] == 200
    board.header.database_down, board.header.answers_since = 0, time.monotonic() - LIMIT + 20
    assert board.live()[0] == 200
    board.header.answers_since = time.monotonic() - LIMIT - 5
    assert board.live()[0] == 503


@pytest.mark.parametrize("state", [State.EMPTY, State.STARTING, State.DEAD])
def test_a_child_that_does_not_run_is_none_that_should_look(board, state):
    board.be_silent()
    board.slot.state = state
    assert board.live()[0] == 200


def test_the_process_for_a_job_that_runs_alone_looks_for_none(board):
    board.slot.looked_at = 0.0
    assert board.live()[0] == 200


@pytest.mark.parametrize(("lease_seconds", "expected"), [(10.0, LIVE_SECONDS_MIN), (300.0, 300.0)])
def test_the_limit_is_longer_than_a_statement_without_an_answer_may_take(lease_seconds, expected):
    assert Options(None, "default", lease_seconds=lease_seconds).live_seconds == expected
