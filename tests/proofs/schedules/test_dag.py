"""Every node of a workflow is DONE once, and after its parents, whatever happens to the workers."""

from __future__ import annotations

import random
import time

import pytest

from jobqueue import groups
from jobqueue.models import Job
from tests.groups import nodes
from tests.marks import committed
from tests.proofs import audit
from tests.proofs.flow.crowd import Crowd
from tests.proofs.running import unended, wait_for
from tests.proofs.schedules import graphs

pytestmark = [committed, pytest.mark.timeout(7200)]
OPTIONS = ("--processes", "2", "--concurrency", "4", "--lease", "4s", "--heartbeat", "1s")
#: (seeds, nodes of a level)
FULL, SHORT = (20, 200), (1, 12)
KILLS = 8


@pytest.fixture
def audited():
    """The database records each change of a job's status."""
    audit.start()
    yield
    audit.stop()


def ended():
    """How many jobs have ended."""
    return Job.objects.filter(status__in=(Job.Status.DONE, Job.Status.FAILED, Job.Status.CANCELED)).count()


def kill_until(condition, crowd, step):
    """SIGKILL to any process of any worker each time so many jobs have ended, until the condition is true."""
    while not condition():
        seen = ended()
        crowd.kill_one()
        wait_for(lambda: condition() or ended() >= seen + step, 120, lambda: unended(crowd.workers))  # noqa: B023


def run_one(seed, width, crowd, path):
    """One workflow from its start to its end, with a resume in between; how often each callback was added."""
    nodes.empty()
    audit.run(f"DELETE FROM {audit.TABLE}")
    path.unlink(missing_ok=True)
    random.seed(seed)
    if_failed = ("cancel", "hold")[seed % 2]
    graph = graphs.start(seed, width, if_failed, path, 0.01)
    step = max(3, graphs.DEPTH * width // KILLS)
    broken = Job.objects.filter(pk=nodes.job(graph.broken).pk)
    kill_until(broken.filter(status=Job.Status.FAILED).exists, crowd, step)
    if if_failed == "cancel":
        kill_until(lambda: groups.get(graph.number).state == "ended", crowd, step)
    path.touch()
    told = groups.resume(graph.number)
    assert graph.broken in told.runs
    kill_until(lambda: groups.get(graph.number).state == "ended", crowd, step)
    wait_for(lambda: not Job.objects.filter(status__in=(0, 1)).exists(), 120, lambda: unended(crowd.workers))
    assert nodes.contradictions() == []
    assert (graphs.times_done(), graphs.in_the_wrong_order(), graphs.begun_too_early()) == (
        {1: graphs.DEPTH * width},
        [],
        [],
    )
    badly = {"ended_badly": 1} if if_failed == "cancel" else {}
    assert graphs.callbacks() == {"ended_well": 1, "ended": 1 + len(badly)} | badly
    assert nodes.swept() == (0, 0)
    return len(told.runs) + len(told.waits)


def test_every_node_ends_done_once_after_its_parents(run_worker, audited, tmp_path, full, figure):
    """2 workers of 2 processes, which are killed and replaced, and no sweep; a node fails until it is resumed."""
    seeds, width = FULL if full else SHORT
    crowd = Crowd(lambda *options: run_worker(*options, JOBQUEUE_PROVE_NO_GROUP_SWEEP="1"), 2, *OPTIONS)
    begun = time.monotonic()
    again = sum(run_one(seed, width, crowd, tmp_path / "healed") for seed in range(seeds))
    seconds = (time.monotonic() - begun) / seeds
    figure("workflows", seeds)
    figure("nodes of each", f"{width * graphs.DEPTH:,}")
    figure("kill -9", crowd.kills)
    figure("nodes that were resumed", again)
    figure("nodes DONE twice, or before a parent", 0)
    figure("seconds for each", round(seconds))
