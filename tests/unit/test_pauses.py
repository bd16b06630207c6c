"""How long a child waits between two looks at its queues."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from jobqueue.worker.child import loop as loops
from jobqueue.worker.child.loop import HOT_SECONDS, Loop
from tests.marks import finding


@pytest.mark.parametrize(
    ("idle_seconds", "shortest", "longest"),
    [
        (0.0, HOT_SECONDS, HOT_SECONDS),
        (0.1, HOT_SECONDS, HOT_SECONDS),
        (0.9, 0.018, 0.02),
        (2.0, 0.05, 0.2),
        (11.0, 0.125, 0.2),
    ],
)
def test_the_longer_it_had_no_work_the_longer_it_waits(idle_seconds, shortest, longest, monkeypatch):
    # Three hundred looks at the same moment.
    monkeypatch.setattr(loops.time, "monotonic", lambda: idle_seconds)
    loop = Loop.__new__(Loop)
    loop.slot = SimpleNamespace(hot=0)
    loop.options = SimpleNamespace(poll_low_seconds=0.05, poll_high_seconds=0.2)
    loop.fetcher = SimpleNamespace(outage=SimpleNamespace(failures=0), last_claim=0.0, more=False)
    loop.settler, loop.pool = SimpleNamespace(last_written=0.0), SimpleNamespace(waiting=0)
    pauses = [loop._pause(0) for _ in range(300)]
    assert shortest <= min(pauses) <= shortest + 0.03
    assert longest - 0.03 <= max(pauses) <= longest


def test_after_a_look_that_was_to_be_followed_soon_by_another_it_waits_a_little(monkeypatch):
    """Others may have left it alone, because they were told so before the look."""
    monkeypatch.setattr(loops.time, "monotonic", lambda: 1.5)
    loop = Loop.__new__(Loop)
    loop.slot = SimpleNamespace(hot=1)
    loop.options = SimpleNamespace(poll_low_seconds=3600.0, poll_high_seconds=7200.0)
    loop.fetcher = SimpleNamespace(outage=SimpleNamespace(failures=0), last_claim=0.0, more=False)
    loop.settler, loop.pool = SimpleNamespace(last_written=0.0), SimpleNamespace(waiting=0)
    assert loop._pause(0) < 0.1


@finding("F17")
def test_while_there_are_jobs_to_pass_over_it_does_not_wait():
    loop = Loop.__new__(Loop)
    loop.fetcher = SimpleNamespace(outage=SimpleNamespace(failures=0), last_claim=0.0, more=True)
    loop.settler, loop.slot = SimpleNamespace(last_written=0.0), SimpleNamespace(hot=0)
    loop.pool, loop.options = SimpleNamespace(waiting=0), SimpleNamespace(poll_low_seconds=5.0, poll_high_seconds=5.0)
    assert loop._pause(0) == loop._pause(3) == 0.0


@pytest.mark.parametrize(("idle_seconds", "hot"), [(0.1, 1), (1.5, 0)])
def test_it_tells_before_each_look_whether_another_one_follows_soon(idle_seconds, hot, monkeypatch):
    monkeypatch.setattr(loops.time, "monotonic", lambda: idle_seconds)
    loop, told = Loop.__new__(Loop), []
    loop.slot, loop.settler = SimpleNamespace(hot=1 - hot), SimpleNamespace(last_written=0.0)
    loop.child = SimpleNamespace(watched=nullcontext)
    loop.fetcher = SimpleNamespace(last_claim=0.0, claim=lambda notified: told.append(loop.slot.hot))
    loop._claim()
    assert told == [hot]
