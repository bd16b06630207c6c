"""When the monitor ends the process of a job beyond its hard limit, for the other jobs in it."""

import os
import time

import pytest

from jobqueue.worker.monitor import stopping
from jobqueue.worker.shared.scoreboard import KILLED, Hold, Scoreboard, Winding
from tests.clocks import Clock

LATE, INNOCENT = 1, 2


class Child:
    """A child with running jobs, and the monitor's watch over it; kills are counted."""

    def __init__(self, monkeypatch):
        self.scoreboard, self.clock, self.kills = Scoreboard(1, 4), Clock(), 0
        self.clock.go(1000)
        self.slot, self.lease_slots = self.scoreboard.slots[0], self.scoreboard.lease_slots[0]
        self.slot.pid = os.getpid()
        self.watch = stopping.Overtime(self.scoreboard)
        monkeypatch.setattr(time, "monotonic", self.clock)
        monkeypatch.setattr(os, "kill", self.killed)

    def killed(self, pid, number):
        self.kills += 1
        # As for a new child in the same place.
        self.scoreboard.fill(0)
        self.slot.pid = os.getpid()

    def run(self, place, job_id, hard_seconds=0.0):
        lease_slot = self.lease_slots[place]
        lease_slot.job_id, lease_slot.hold, lease_slot.flags = job_id, Hold.RUNNING, 0
        lease_slot.hard_until = self.clock() + hard_seconds if hard_seconds else 0.0
        return lease_slot

    def looks(self, seconds, answer=True):
        """Look every quarter of a second, as the monitor does; how many kills there were."""
        before = self.kills
        for _ in range(int(seconds * 4)):
            self.clock.go(0.25)
            self.watch.enforce([0])
            if answer and self.slot.winding:
                self.slot.winding = Winding.ANSWERED
        return self.kills - before


@pytest.fixture
def child(monkeypatch):
    return Child(monkeypatch)


def test_a_job_that_is_alone_is_ended_at_once(child):
    lease_slot = child.run(0, LATE, 1.0)
    assert child.looks(1) == 0
    assert child.looks(0.25) == 1
    assert lease_slot.overtime == 0, "the place is filled anew"


def test_only_jobs_that_are_late_are_charged(child, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    late, other = child.run(0, LATE, 1.0), child.run(1, INNOCENT)
    child.looks(7)
    assert [late.overtime, other.overtime, child.slot.overtime] == [LATE, 0, 1]


def test_a_job_that_gets_the_place_of_a_late_one_meanwhile_is_not_charged(child, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    monkeypatch.setattr(child.watch, "_is_over", lambda *_: child.run(0, INNOCENT))
    lease_slot = child.run(0, LATE, 1.0)
    child.looks(2)
    assert (lease_slot.job_id, lease_slot.overtime, child.slot.overtime) == (INNOCENT, LATE, 1)


def test_others_have_some_seconds_to_end_and_more_with_each_time(child):
    for seconds in (5, 10, 20, 40):
        child.run(0, LATE, 0.1)
        child.run(1, INNOCENT)
        assert child.looks(seconds) == 0
        assert child.looks(1) == 1


def test_the_time_to_end_has_a_bound(child):
    for _ in range(10):
        child.run(0, LATE, 0.1)
        child.run(1, INNOCENT)
        assert child.looks(stopping.GRACE_MAX_SECONDS + 1) >= 1


def test_it_is_ended_as_soon_as_the_last_of_the_others_has_ended(child):
    child.run(0, LATE, 0.1)
    other = child.run(1, INNOCENT)
    assert child.looks(3) == 0
    other.hold = Hold.RETURNED
    assert child.looks(0.25) == 1


def test_others_that_become_late_are_waited_for_no_longer(child):
    child.run(0, LATE, 0.1)
    child.run(1, INNOCENT, 2.0)
    assert child.looks(2) == 0
    assert child.looks(0.25) == 1


def test_a_child_that_does_not_answer_is_ended_soon(child):
    child.run(0, LATE, 0.1)
    child.run(1, INNOCENT)
    assert child.looks(2, answer=False) == 0
    assert child.looks(0.5, answer=False) == 1


def test_a_job_that_ends_late_after_all_lets_its_child_go_on(child):
    late = child.run(0, LATE, 0.1)
    child.run(1, INNOCENT)
    child.looks(1)
    assert child.slot.winding == Winding.ANSWERED
    late.hold = Hold.RETURNED
    assert child.looks(60) == 0
    assert child.slot.winding == Winding.NO


def test_what_is_remembered_about_interrupted_jobs_has_a_bound(child, monkeypatch):
    monkeypatch.setattr(stopping, "KNOWN_MAX", 3)
    for job_id in range(10, 20):
        child.run(0, LATE, 0.1)
        child.run(1, job_id)
        child.looks(6)
    assert list(child.watch._interrupted) == [17, 18, 19]


class TestCanceledJobs:
    """Those that are to be killed."""

    CANCELED, number = 3, 0

    def cancel(self, child, place, seconds):
        lease_slot = child.run(place, self.CANCELED)
        key = self.CANCELED, lease_slot.fence
        self.number += 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stopping, "_kills", lambda keys, using: {key: child.clock() + seconds})
            child.watch.note(0, {key: self.number}, "default")
        return lease_slot

    def told(self, child):
        stacks = child.scoreboard.stacks[0]
        if stacks.question:
            stacks.write(stacks.question, b"{}")

    def test_it_is_killed_at_its_time_once_the_child_has_told_where_it_is(self, child, monkeypatch):
        lease_slot, other = self.cancel(child, 0, 10.0), child.run(1, INNOCENT)
        assert child.looks(8.75) == 0
        assert not child.scoreboard.stacks[0].question
        assert child.looks(0.5) == 0
        self.told(child)
        assert child.looks(0.5) == 0
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        child.looks(0.5)
        assert [lease_slot.flags, other.flags, child.slot.blameless] == [KILLED, 0, 1]

    def test_no_job_is_started_beside_it_in_the_last_seconds(self, child):
        self.cancel(child, 0, 10.0)
        child.looks(4.75)
        assert child.slot.winding == Winding.NO
        child.looks(0.5)
        assert child.slot.winding != Winding.NO

    def test_a_child_that_tells_nothing_is_killed_all_the_same(self, child):
        self.cancel(child, 0, 0.0)
        assert child.looks(stopping.ANSWER_SECONDS, answer=False) == 0
        assert child.looks(0.25, answer=False) == 1

    def test_a_job_that_stops_in_time_lets_the_child_go_on(self, child):
        lease_slot = self.cancel(child, 0, 2.0)
        child.looks(1.5)
        assert child.scoreboard.stacks[0].question == 1
        lease_slot.hold = Hold.RETURNED
        assert child.looks(10) == 0
        assert child.slot.winding == Winding.NO

    def test_the_next_one_is_asked_for_its_stack_again(self, child):
        lease_slot = self.cancel(child, 0, 1.0)
        child.looks(0.5)
        self.told(child)
        lease_slot.hold = Hold.RETURNED
        child.looks(1)
        self.cancel(child, 0, 1.0)
        child.looks(0.5)
        assert child.scoreboard.stacks[0].question == 2

    def test_another_job_in_its_place_is_left_alone(self, child):
        self.cancel(child, 0, 1.0)
        child.run(0, INNOCENT)
        assert child.looks(10) == 0

    def test_a_request_that_is_gone_kills_nobody(self, child):
        self.cancel(child, 0, 1.0)
        child.watch.note(0, {}, "default")
        assert child.looks(10) == 0

    def test_a_job_that_is_late_beside_it_is_still_charged(self, child, monkeypatch):
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        late = child.run(1, LATE, 0.1)
        lease_slot = self.cancel(child, 0, 3600.0)
        child.looks(7)
        assert [lease_slot.overtime, late.overtime] == [0, LATE]
