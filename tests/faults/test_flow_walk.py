"""Limits, pauses and breakers whose process dies, or loses its session, at any moment: nothing is taken for ever.

Each story is carried out by a process that is cut before or after one of its statements. Then others do what workers do
all the time, and look whether each job starts; where one does not, the sweep has to repair it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import pytest

from jobqueue import flow, task
from jobqueue.conf import load
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.gates import breaker
from jobqueue.gates.breaker import Run
from jobqueue.gates.rules import forget_rules
from jobqueue.gates.timing import open_due
from jobqueue.maintenance.gate_sweep import GateSweep
from jobqueue.models import BreakerState, FlowRule, Gate, GateSlot, GateWait, Job
from jobqueue.transitions import ack, claim, fail, reap, release
from tests.factories import expire
from tests.faults.cuts import before_first, disconnected, killed
from tests.gates import jobs
from tests.marks import committed
from tests.settings import FULL, VENDOR

#: `make prove` walks each moment
STRIDE = 1 if FULL else 61
JOBS = 3

pytestmark = committed
SERVICE = "service"


@pytest.fixture(autouse=True)
def settings_of_the_walk(settings, own_registry):
    settings.JOBQUEUE = {"DEPENDENCIES": {SERVICE: {"FAILURES": 2}}}


def start(limit=9):
    """The leases of what may start now, by what the database says now."""
    forget_rules()
    return claim("q", limit, worker="w")


def let_time_pass():
    """Let all instants come for which somebody waits."""
    Gate.objects.filter(used_until__isnull=False).update(used_until=UtcNowPlus(-60))
    Gate.objects.filter(opens_at__isnull=False).update(opens_at=UtcNowPlus(-1))
    BreakerState.objects.filter(probe_at__isnull=False).update(probe_at=UtcNow())
    forget_rules()
    open_due(using="default")


def hand_over(work):
    """Slots go from job to job: claims close gates, and each end opens one."""
    while leases := start():
        assert len(leases) == 1
        ack(leases[0])


def crash_and_fail(work):
    """A lease that runs out frees its slot, and one whose job fails, and one that is given back."""
    (lease,) = start()
    expire(lease)
    reap()
    (lease,) = start()
    fail(lease, error="boom", delay_seconds=0)
    (lease,) = start()
    release(lease)
    hand_over(work)


def wait_for_tokens(work):
    """Buckets that are empty and have a token again."""
    for _ in range(JOBS):
        (lease,) = start()
        let_time_pass()
        ack(lease)


def pause_and_resume(work):
    """A task is paused, the claim closes the gates of its jobs, and it is resumed."""
    flow.pause("q", task=work, reason="walk")
    assert start() == []
    flow.resume("q", task=work)
    let_time_pass()
    for lease in start():
        ack(lease)


def change_limits(work):
    """A queue is paused, a limit is set, changed and taken away, while a job runs and others wait for it."""
    flow.pause("q", reason="walk")
    flow.set_limit("q", task=work, concurrency=1)
    assert start() == []
    flow.resume("q")
    (lease,) = start()
    flow.set_limit("q", task=work, concurrency=2)
    let_time_pass()
    others = start()
    flow.clear_limit("q", task=work)
    let_time_pass()
    for one in [lease, *others, *start()]:
        ack(one)


def run_of(lease):
    """A run that began and ended just now."""
    return Run(lease.job_id, lease.fence, 0.0, 0.0)


def outage(work):
    """Two failures open the breaker, a probe fails, and the next one succeeds."""
    leases = start(2)
    breaker.failed(SERVICE, [[run_of(lease)] for lease in leases], using="default")
    for lease in leases:
        fail(lease, error="refused", delay_seconds=0)
    assert start() == []
    let_time_pass()
    (probe,) = start()
    breaker.failed(SERVICE, [[run_of(probe)]], using="default")
    release(probe)
    assert start() == []
    let_time_pass()
    (probe,) = start()
    breaker.succeeded(SERVICE, [run_of(probe)], using="default")
    ack(probe)
    let_time_pass()
    for lease in start():
        ack(lease)


def outage_by_hand(work):
    """An operator opens the breaker and closes it."""
    flow.breaker(SERVICE).open("walk")
    assert start() == []
    flow.breaker(SERVICE).close()
    let_time_pass()
    for lease in start():
        ack(lease)


@dataclass(frozen=True)
class Story:
    """What is cut; `fields` are those of its task, and at most `most` of its jobs run at once."""

    tell: object
    fields: dict
    most: int = JOBS


LIMITED = {"concurrency_limit": 1}
STORIES = [
    Story(hand_over, LIMITED, 1),
    Story(hand_over, {"concurrency_limit": 1, "concurrency_key": jobs.by_argument}, 1),
    Story(crash_and_fail, LIMITED, 1),
    # A bucket of one token.
    Story(wait_for_tokens, {"rate_limit": "1/m"}),
    Story(pause_and_resume, {}),
    Story(change_limits, {}),
    Story(outage, {"dependency": SERVICE}),
    Story(outage_by_hand, {"dependency": SERVICE}),
]


def begin(story):
    """Empty tables, and the jobs of the story; its task."""
    for model in (Job, FlowRule, Gate, GateSlot, GateWait, BreakerState):
        model.objects.all().delete()
    function = jobs.other if "concurrency_key" in story.fields else jobs.work
    work = task(queue_name="q", **story.fields)(function)
    for _ in range(JOBS):
        work.enqueue("k")
    return work


def carry_on(story, work, *, sweep):
    """What operators and workers do, until nothing more starts; whether all jobs have ended."""
    flow.resume("q")
    flow.resume("q", task=work)
    if any(row.by_hand for row in BreakerState.objects.all()):
        flow.breaker(SERVICE).close()
    idle = 0
    while idle < 3 and Job.objects.exclude(status=Job.Status.DONE).exists():
        for job_id in Job.objects.leased().values_list("pk", flat=True):
            expire(job_id)
        reap()
        if sweep:
            GateSweep(0).run_once(load(), using="default")
        let_time_pass()
        leases = start()
        assert len(leases) <= story.most
        for lease in leases:
            breaker.succeeded(SERVICE, [run_of(lease)], using="default")
            ack(lease)
        idle = 0 if leases else idle + 1
    return not Job.objects.exclude(status=Job.Status.DONE).exists()


def check(story, work, where):
    """Nothing is left of what has ended, and everything is free."""
    GateSweep(0).run_once(load(), using="default")
    assert (GateWait.objects.count(), GateSlot.objects.count()) == (0, 0), where
    work.enqueue("k")
    let_time_pass()
    assert len(start()) == 1, where


@pytest.mark.parametrize(
    "cut",
    [
        killed,
        pytest.param(
            disconnected, marks=pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no sessions to end")
        ),
    ],
    ids=attrgetter("__name__"),
)
@pytest.mark.parametrize(
    "story", STORIES, ids=lambda story: "-".join([story.tell.__name__, *story.fields]).replace("_", " ")
)
def test_wherever_it_is_cut_no_slot_is_taken_and_no_job_hidden_for_ever(story, cut, figure):
    """Slots, tokens, pauses and breakers, cut before and after each statement: what the sweep had to repair."""
    number, cuts, repaired = before_first(STRIDE), 0, 0
    while True:
        number += STRIDE
        work = begin(story)
        stopped = cut(number, partial(story.tell, work))
        where = f"cut at moment {number}"
        if not carry_on(story, work, sweep=False):
            repaired += 1
            assert carry_on(story, work, sweep=True), where
        check(story, work, where)
        if not stopped:
            break
        cuts += 1
    assert number > 20
    figure("story", " ".join([story.tell.__name__, *story.fields]).replace("_", " "))
    figure("cut by", {killed: "SIGKILL", disconnected: "a lost session"}[cut])
    figure("moments", cuts)
    figure("of them repaired by the sweep", repaired)
    figure("slots taken / jobs hidden for ever", "0 / 0")
