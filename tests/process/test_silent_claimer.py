"""A connection that hangs while a child claims is replaced: the child goes on, and what was claimed is found again."""

import pytest

from jobqueue.models import Job, Worker
from tests.app import tasks
from tests.factories import enqueue_times, job, state
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.process.probe import starts
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could hang")]
#: how a claim locks jobs of its queue; PostgreSQL writes them by the same statement
LOCKING = rb"(?s)default.*SKIP LOCKED"
CLAIM = rb"SET .*status. = 1"
CUT = "the database has not answered"


@pytest.fixture
def idle(start, proxied):
    """Start a worker without work, through the proxy, with leases of so many seconds."""

    def idle(lease_seconds=None):
        _, through = proxied
        # After half of it a connection is cut, and on a busy machine one that only waits should not be.
        lease = f"{lease_seconds or round(patient(2))}s"
        group = start("runworker", "--lease", lease, "--heartbeat", "0.5s", "--concurrency", 2, **through)
        wait_until(lambda: Worker.objects.filter(stopped_at__isnull=True).exists(), what="a registered child")
        return group

    return idle


def enqueue():
    enqueue_times(5, tasks.work, 0)


def all_are_done():
    return set(Job.objects.values_list("status", flat=True)) == {Job.Status.DONE}


@finding("A5")
def test_a_claim_that_the_server_has_not_heard_is_made_again_on_another_connection(idle, proxied):
    group, (proxy, _) = idle(), proxied
    proxy.arm(LOCKING)
    enqueue()
    group.causes(proxy.holed, "nothing was claimed")
    wait_until(all_are_done, what="the ends of all jobs")
    group.prints(CUT)
    assert group.text().count(CUT) == 1
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@finding("A5")
def test_a_job_whose_claim_was_committed_and_not_answered_runs_without_a_charge(idle, proxied):
    group, (proxy, _) = idle(), proxied
    if VENDOR == "postgres":
        proxy.arm(CLAIM, heard=True)
    else:
        proxy.arm(rb"(?i)commit", before=CLAIM, heard=True)
    lost = tasks.add.enqueue(1, 2).id
    group.causes(proxy.holed, "nothing was claimed")
    wait_until(lambda: job(lost).fence, what="the commit")
    enqueue()
    wait_until(all_are_done, what="the ends of all jobs")
    group.prints(CUT)
    assert group.text().count(CUT) == 1
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@finding("A5")
def test_time_limits_are_enforced_while_a_claim_is_not_answered(idle, proxied, evidence):
    # So long a lease that the connection is not cut meanwhile.
    group, (proxy, _) = idle(lease_seconds=600), proxied
    proxy.arm(LOCKING, before=CLAIM)
    limited = tasks.overlong.enqueue().id
    starts(evidence)
    enqueue()
    wait_until(lambda: state(limited) == "FAILED", what="the end of the job")
    assert CUT not in group.text()
