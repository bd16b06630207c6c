"""`make demo`: its own database, its bar, its last words, and how it gives up."""

import fcntl
import io
import signal

import pytest
from django.core.management.base import OutputWrapper

from demo_project.demo.giving_up import GaveUp, Pace, TimeUp, start_timer, stop_timer, undisturbed
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof
from demo_project.demo.verdict import verdict
from tests.demo.helpers import manage, tables
from tests.patience import wait_until


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def drawn(stream):
    """What a stream gets of a bar that is moved once."""
    progress = Progress(8, "files", OutputWrapper(stream))
    with progress.moving():
        progress.show(2)
        progress.say("kill -9 1")
        progress.show(4)
    return stream.getvalue()


def test_a_bar_moves_on_a_terminal():
    last = drawn(Terminal()).rpartition("\r\x1b[K")[2]
    assert "[####################                    ] 4/8 files" in last
    assert last.endswith(" s\n")


def test_a_pipe_gets_no_bar_but_what_is_said():
    assert drawn(io.StringIO()) == "kill -9 1\n"


def test_a_bar_fits_into_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "20")
    for line in drawn(Terminal()).replace("kill -9 1\n", "").split("\r\x1b[K"):
        assert len(line.strip()) < 40


def test_the_verdict_is_two_sentences():
    stages = ["files", "orders", "numbers", "parcels", "outage", "month"]
    assert verdict(stages, [Proof("x", 1, 1)], ".demo/demo.sqlite3") == (
        "No job, order, serial number, parcel, payment or invoice was lost or done twice, although a worker process "
        "and a relay were killed with SIGKILL. The rows are in .demo/demo.sqlite3, where you can look at them until "
        "the next run."
    )
    assert verdict(["numbers"], [], "x").startswith("No serial number was lost or done twice. The rows")
    told = verdict(["orders"], [Proof("orders committed", 437, 436)], "x")
    assert "see orders committed." in told
    assert "No order" not in told


def test_a_proof_may_have_bounds():
    assert [Proof("x", "some", found, at_least=1).holds for found in (0, 1, 2, None)] == [False, True, True, False]
    assert [Proof("x", "few", found, at_most=1).holds for found in (0, 1, 2, None)] == [True, True, False, False]
    assert Proof("x", 1, 1).holds
    assert not Proof("x", 1, "1").holds


def test_a_pace_tells_what_stands_still_from_what_is_slow(monkeypatch):
    pace = Pace(100, "files")
    pace.see(10)
    assert "10 of 100 files after 0 s, which is too slow" in pace.cause()
    pace.moved_at -= 30
    assert "10 of 100 files after 0 s, and nothing has changed for 30 s" in pace.cause()


def test_the_time_does_not_end_while_a_process_is_started():
    started = []

    def start():
        with undisturbed():
            start_timer(0.001)
            wait_until(lambda: signal.getitimer(signal.ITIMER_REAL)[0] == 0, what="the end of the time")
            started.append(1)

    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(TimeUp):
            start()
    finally:
        stop_timer()
        signal.signal(signal.SIGALRM, before)
    assert started


def test_no_time_ends_after_the_demo_gave_up():
    before = signal.getsignal(signal.SIGALRM)
    try:
        start_timer(600)
        GaveUp("a cause")
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def elsewhere(tmp_path):
    """The environment of a demo that must not touch the database of DATABASE_URL; what an earlier run left."""
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "demo.sqlite3").write_text("what an earlier run has left is no database")
    return {"DEMO_DIR": str(folder), "DATABASE_URL": f"sqlite:///{tmp_path / 'mine.sqlite3'}", "BROKER_URL": ""}


def test_a_demo_that_gives_up_says_why_and_never_that_all_was_delivered(elsewhere, tmp_path):
    done = manage("demo", "--stage", "orders", "--give-up-after", "1s", **elsewhere)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The demo gave up after" in done.stdout
    assert "at the stage 'orders'" in done.stdout
    assert "Cause: " in done.stdout
    assert "All delivered" not in done.stdout
    assert "proofs hold" not in done.stdout
    # It began with a new database, and left that of DATABASE_URL alone.
    assert tables(tmp_path / "mine.sqlite3") == []
    assert (tmp_path / "demo" / "demo.sqlite3").read_bytes().startswith(b"SQLite format 3")


def test_a_worker_that_cannot_start_is_the_cause_at_once(elsewhere):
    done = manage("demo", "--stage", "files", "--size", "full", JOBQUEUE_WORKER_CONCURRENCY="many", **elsewhere)
    assert done.returncode == 1, done.stdout + done.stderr
    words = " ".join(done.stdout.split())
    assert "3 starts failed" in words
    assert "JOBQUEUE_WORKER_CONCURRENCY" in words


def test_two_demos_do_not_run_at_once(elsewhere, tmp_path):
    with (tmp_path / "demo" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        done = manage("demo", **elsewhere)
    assert done.returncode == 1
    assert "Another demo is running (process 4711)" in done.stderr
