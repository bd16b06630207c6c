"""Any other connection of a worker or a relay may hang: whoever waits for it goes on with another one."""

import json
import os
import signal

import pytest

from jobqueue.models import OutboxEvent, Worker
from tests.app import tasks
from tests.factories import job, state
from tests.marks import committed, finding
from tests.outbox.helpers import say
from tests.patience import patient, wait_until
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no connection that could hang")]
CUT = "the database has not answered"
#: how a session is made as good as new; MySQL's is a command without a text
RESET = rb"DISCARD ALL" if VENDOR == "postgres" else rb"(?s)\A...\x00\x11"
#: after half of it a connection is cut, and on a busy machine one that only waits should not be
LEASES = ("--lease", f"{round(patient(2))}s", "--heartbeat", "0.5s")


def opens_a_connection(file, group, pid):
    """Whether a thread of a process, which has come through this file, is about to; see tests.settings_process."""
    os.kill(pid, signal.SIGUSR2)
    stacks = group.text().split("(most recent call first)")
    return any(file in stack and "in get_new_connection" in stack for stack in stacks)


def delivered(event_id):
    return OutboxEvent.objects.filter(pk=event_id, processed_at__isnull=False).exists()


@finding("A5")
@pytest.mark.parametrize(
    "command", [("runworker", *LEASES), ("relay_outbox", "--interval", "50ms")], ids=["of a worker", "alone"]
)
@pytest.mark.parametrize("needle", [rb"(?s)job_outbox.*SKIP LOCKED", rb"(?s)UPDATE .job_outbox. .*processed_at"])
def test_a_relay_whose_connection_hangs_goes_on(start, proxied, command, needle):
    proxy, through = proxied
    group = start(*command, JOBQUEUE_TEST_OUTBOX=json.dumps({"LEASE_SECONDS": 10}), **through)
    first = say("fine")
    wait_until(lambda: delivered(first), what="a delivery")
    proxy.arm(needle)
    second = say("fine")
    group.causes(proxy.holed, "the relay did nothing")
    wait_until(lambda: delivered(second), what="the other delivery")
    group.prints(CUT)


@finding("A5")
def test_a_child_whose_name_is_not_written_in_time_runs_jobs_all_the_same(start, proxied):
    proxy, through = proxied
    proxy.arm(rb"INSERT INTO .job_worker")
    group = start("runworker", *LEASES, **through)
    job_id = tasks.add.enqueue(1, 2).id
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
    group.prints(CUT)
    assert group.text().count(CUT) == 1


@finding("A5")
def test_a_session_that_hangs_when_its_job_is_over_does_not_keep_the_end_from_being_written(start, proxied):
    proxy, through = proxied
    # Else a session is not kept for the next job.
    through = {name: f"{url}?conn_max_age=60" for name, url in through.items()}
    proxy.arm(RESET)
    group = start("runworker", *LEASES, **through)
    job_id = tasks.count_done.enqueue().id
    group.causes(proxy.holed, "no session was reset")
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
    group.prints(CUT)
    assert group.text().count(CUT) == 1


def test_an_end_is_written_although_the_connection_for_it_hangs_while_it_is_opened(start, proxied):
    proxy, through = proxied
    group = start("runworker", *LEASES, **through)
    wait_until(lambda: Worker.objects.filter(stopped_at__isnull=True).exists(), what="a registered child")
    proxy.deaf.set()
    job_id = tasks.add.enqueue(1, 2).id
    group.causes(proxy.holed, "no connection was opened")
    wait_until(lambda: job(job_id).fence, what="the claim")
    child = Worker.objects.get().pid
    wait_until(lambda: opens_a_connection("settler.py", group, child), what="the thread that writes ends")
    proxy.deaf.clear()
    wait_until(lambda: state(job_id) == "DONE", what="the end of the job")
    assert job(job_id).attempts == 0
