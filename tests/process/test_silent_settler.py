"""A connection that hangs while ends are written is replaced, and the ends are written."""

import pytest

from jobqueue.models import Job, JobAttempt
from tests.app import tasks
from tests.factories import enqueue_times
from tests.marks import committed, finding
from tests.patience import patient, wait_until
from tests.process.harness import kill_sessions
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could hang")]
ACK = rb"SET .status. = 2"


@pytest.fixture
def work(start, proxied):
    """Let a worker run what is there, and its connection hang at this statement."""
    proxy, through = proxied

    def work(needle):
        proxy.arm(needle)
        group = start(
            "runworker", "--lease", f"{round(patient(2))}s", "--heartbeat", "0.5s", "--concurrency", 2, **through
        )
        group.causes(proxy.holed, "no end was written")
        return group

    return work


def ended():
    return Job.objects.filter(status__in=(Job.Status.DONE, Job.Status.FAILED)).count()


@finding("A5")
@pytest.mark.parametrize("task", [tasks.work, tasks.work_acked_each], ids=["together", "one by one"])
def test_acks_are_written_on_another_connection(work, task):
    enqueue_times(20, task, 0)
    group = work(ACK)
    wait_until(lambda: ended() == 20, what="the ends of all jobs")
    group.prints("the database has not answered")
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


@finding("A5")
def test_an_end_whose_row_stays_locked_by_the_connection_that_hangs_is_left_for_later(work):
    enqueue_times(10, tasks.boom.using(max_attempts=1))
    group = work(rb"INSERT INTO .job_attempt")
    # MySQL and MariaDB may have ended the session that hangs, which idles in its transaction, before the last of these.
    wait_until(lambda: ended() >= 9, what=lambda: f"9 ends, but {ended()}")
    group.prints("the database has not answered")
    # As the server does when it finds out that nobody is there.
    kill_sessions()
    wait_until(lambda: ended() == 10, what="the last end")
    assert (set(Job.objects.values_list("attempts", flat=True)), JobAttempt.objects.count()) == ({1}, 10)
