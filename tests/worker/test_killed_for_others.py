"""A child that the monitor has killed for a job beyond its hard limit: which of its jobs are charged."""

import signal

import pytest

from jobqueue.models import Job
from jobqueue.transitions import claim
from jobqueue.worker.monitor.recovery import Recovery
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.scoreboard import Hold, Scoreboard, State
from jobqueue.worker.shared.worker_options import Options
from tests.factories import job, make_job, state
from tests.marks import committed

pytestmark = committed


@pytest.fixture
def settle():
    """Settle a child that was killed for late jobs. It ran these jobs; each has the number noted as late."""
    options, scoreboard = Options(Selection(), "default"), Scoreboard(2, 4)
    generation = scoreboard.fill(0)

    def settle(late):
        slot = scoreboard.slots[0]
        leases = claim("q", len(late), worker=options.child_name(0, generation))
        for lease, lease_slot in zip(leases, scoreboard.lease_slots[0], strict=False):
            lease_slot.fill(lease.job_id, lease.fence, lease.token, lease_seconds=60.0, lease_until=60.0)
            lease_slot.hold, lease_slot.overtime = Hold.RUNNING, late[lease.job_id]
        slot.state, slot.wait_status, slot.overtime = State.DEAD, signal.SIGKILL, 1
        Recovery(options, scoreboard, 0.0, lambda *_: None, lambda: None).settle_dead()

    return settle


def test_only_the_late_one_is_charged(settle):
    late, other = make_job(), make_job()
    settle({late: late, other: 0})
    assert [(state(one), job(one).attempts) for one in (late, other)] == [("READY", 1), ("READY", 0)]
    assert "HardTimeout" in job(late).last_error


def test_if_the_late_one_had_just_ended_nobody_is_charged(settle):
    follower, other = make_job(), make_job()
    settle({follower: other + 1, other: 0})
    assert [(state(one), job(one).attempts) for one in (follower, other)] == [("READY", 0), ("READY", 0)]
    assert Job.objects.exclude(last_error=None).count() == 0
