"""The system gives no more processes or threads: the supervisor says so once, waits, and still obeys."""

import fcntl
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from jobqueue.models import Job, Worker
from tests.app import tasks
from tests.factories import state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.probe import age_of, monitor_of
from tests.settings import VENDOR

pytestmark = committed

# The limit counts processes and threads per real user, and does not bind root: as root the worker gets a real user of
# its own, and keeps root's right to read files.
ROOT = os.getuid() == 0
USERS = range(60_000, 64_000)
WORD = "no process can be started"
LISTENER = VENDOR == "postgres"  # a thread of the monitor
# Main thread, stack dump, watchdog, settler, wake-up, signals, statistics, event loop; four job threads.
CHILD = 8 + 4
# Threads that renew, settle jobs of dead children, keep house, fire schedules, write statistics; the watchdog.
MONITOR = 6 + LISTENER
LOG_WRITER = 2  # one reads log lines, one writes them
SINGLE = 1 + LOG_WRITER + MONITOR + CHILD  # with the supervisor
FAMILY = SINGLE + CHILD


@pytest.fixture
def user():
    """The real user of this test's processes; what another test has there, or has left behind, must not count."""
    if not ROOT:
        yield os.getuid()
        return
    for number in USERS:
        with (Path(tempfile.gettempdir()) / f"jobqueue-test-user-{number}").open("w") as mine:
            try:
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not threads_of(number):
                yield number
                return


def acting_as(user):
    """The command that starts another one as this user."""
    return ("setpriv", "--ruid", str(user), "--bounding-set=-sys_resource,-sys_admin", "--") if ROOT else ()


def belongs_to(status, user):
    """Whether this file of /proc tells of a thread that counts against the user's limit."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return False
    return any(line.split()[1] == str(user) for line in lines if line.startswith("Uid:"))


def counts_for(pid, user):
    """Whether this process counts against the user's limit by now; a new one belongs to us until it has changed."""
    return belongs_to(Path("/proc", str(pid), "status"), user)


def threads_of(user):
    """Everything that counts against the limit now."""
    return sum(belongs_to(status, user) for status in Path("/proc").glob("[0-9]*/task/[0-9]*/status"))


def registered(count):
    """The worker rows that are alive, once there are `count`."""
    return wait_until(
        lambda: (rows := list(Worker.objects.filter(stopped_at=None).order_by("id"))) and len(rows) == count and rows,
        what=f"{count} workers",
    )


def complete(group, threads):
    """Wait until all threads of the worker run: a child registers before it has started its own."""
    wait_until(
        lambda: sum(len(list(Path(f"/proc/{pid}/task").glob("*"))) for pid in group.members()) == threads,
        what=f"{threads} threads",
    )


def refusals(group):
    """How often the supervisor has said that the system gives no process."""
    return group.text().count(WORD)


@pytest.fixture
def crowded(worker, user):
    """Start a worker whose user may have `room` processes and threads."""

    def run(*options, room=FAMILY, **environment):
        most = room + threads_of(user)
        return worker(*options, prefix=(*acting_as(user), "prlimit", f"--nproc={most}:{most}", "--"), **environment)

    return run


@pytest.fixture
def crowd(user):
    """Let the worker's user have so many processes more; empty() ends them."""
    others = []

    class Crowd:
        def fill(self, count=FAMILY):
            new = [subprocess.Popen([*acting_as(user), "sleep", "600"]) for _ in range(count)]
            others.extend(new)
            wait_until(lambda: all(counts_for(other.pid, user) for other in new), what="the crowd")

        def empty(self):
            while others:
                other = others.pop()
                other.kill()
                other.wait()

    yield Crowd()
    Crowd().empty()


def test_a_child_that_cannot_be_replaced_now_is_replaced_when_there_is_room(crowded, crowd):
    group = crowded("--processes", 2)
    first, second = registered(2)
    complete(group, FAMILY)
    crowd.fill()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: refusals(group), what="the refusal")
    done = [tasks.work.enqueue(0.3).id for _ in range(20)]
    wait_until(lambda: {state(i) for i in done} == {"DONE"}, what="the work of the child that is left")
    assert refusals(group) == 1, "one line for the whole shortage"
    wait_until(
        lambda: [row.pk for row in Worker.objects.filter(stopped_at=None)] == [second.pk], what="the other's end"
    )
    crowd.empty()
    assert {row.pid for row in registered(2)} > {second.pid}
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_a_worker_that_can_start_nothing_waits_and_stops_when_told(crowded):
    group = crowded(room=1)
    wait_until(lambda: refusals(group), what="the refusal")
    assert group.members() == [group.pid]
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    assert "Traceback" not in group.text()


def test_a_supervisor_that_has_lost_monitor_and_children_stops_when_told(crowded, crowd):
    # Without a monitor no process can give leases back, and there are none.
    group = crowded(JOBQUEUE_TEST_SETTLE_SECONDS="1")
    registered(1)
    complete(group, SINGLE)
    crowd.fill()
    # The process that writes log lines first: it would take the refusal with it. Without it the supervisor writes.
    log_writer, *others = sorted(set(group.members()) - {group.pid}, key=age_of)
    os.kill(log_writer, signal.SIGKILL)
    wait_until(lambda: refusals(group), what="the refusal")
    for pid in others:
        os.kill(pid, signal.SIGKILL)
    group.signal(signal.SIGTERM)
    group.wait()
    assert "Traceback" not in group.text()


def test_the_monitor_is_replaced_when_there_is_room(crowded, crowd):
    job_id = tasks.work.enqueue(0).id
    group = crowded()
    (child,) = registered(1)
    wait_until(lambda: state(job_id) == "DONE")
    complete(group, SINGLE)
    monitor = monitor_of(group, child.pid)
    crowd.fill()
    os.kill(monitor, signal.SIGKILL)
    wait_until(lambda: refusals(group), what="the refusal")
    crowd.empty()
    wait_until(lambda: len(group.members()) == 4, what="another monitor")
    group.signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_child_without_room_for_its_threads_is_tried_again(crowded, crowd):
    group = crowded("--concurrency", 8, room=SINGLE + 4)
    (child,) = registered(1)
    complete(group, SINGLE + 4)
    crowd.fill(5)
    # When it is gone, there is room for a child and for three of its threads.
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: refusals(group), what="the word about threads")
    group.prints("no room for its threads")
    crowd.empty()
    job_id = tasks.work.enqueue(0).id
    wait_until(lambda: state(job_id) == "DONE")
    assert refusals(group) == 1
    assert "Traceback" not in group.text()
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
