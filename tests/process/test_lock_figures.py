"""Workers write down what the locks of their jobs did, and one of them looks at the server's."""

import signal

import pytest

from jobqueue.lockstats.recorder import Counters
from jobqueue.maintenance import lock_watch
from jobqueue.models import Job, LockRow, LockStat
from jobqueue.worker.child.process import LockReport
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Scoreboard, State
from tests.app import tasks
from tests.marks import committed
from tests.patience import wait_until
from tests.process.probe import free_port, metric
from tests.settings import VENDOR

pytestmark = committed


def test_a_worker_that_leaves_has_written_what_its_locks_did_and_what_it_redid(worker):
    for _ in range(3):
        tasks.takes_a_lock.enqueue("shared")
    tasks.is_refused_once.enqueue()
    group = worker("--probe-port", port := free_port(), "--processes", 1, "--concurrency", 1)
    wait_until(lambda: not Job.objects.exclude(status=Job.Status.DONE).exists())
    # Counted in the child at once, and shown by the monitor.
    error = "busy" if VENDOR == "sqlite" else "deadlock"
    assert metric(port, rf'transactions_redone_total\{{error="{error}",verb="counter"\}}') == 1
    group.signal(signal.SIGTERM)
    assert group.wait() == 0
    found = LockStat.objects.get(kind="transaction", lock_key__startswith="counter ")
    assert (found.lock_key, found.contended, found.failed) == (f"counter {error}", 1, 0)
    row = LockStat.objects.exclude(kind="transaction").get()
    assert (row.kind, row.lock_key) == ("lease lock", "shared")
    assert (row.acquired, row.failed, row.released, row.reentries) == (3, 3, 3, 0)
    assert "Traceback" not in group.text()


@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no row locks to look at")
def test_a_worker_takes_its_turn_at_the_servers_locks(worker):
    group = worker()
    wait_until(lambda: LockRow.objects.filter(pk=lock_watch.TURN).exists())
    group.end()
    assert "skipping the lock watch" not in group.text()
    assert not Job.objects.exists()


def test_the_scoreboard_sums_what_replaced_children_counted_and_metrics_show_it():
    scoreboard = Scoreboard(1, 1)
    slot = scoreboard.slots[0]
    for times in (1, 2):
        scoreboard.fill(0)
        slot.state = State.RUNNING
        report = LockReport(slot)
        report(Counters(acquired=1, failed=2, contended=1, reentries=1, wait_us=500))
        report(Counters(acquired=5, failed=3, contended=2, reentries=1, wait_us=900))
        assert (slot.locks_acquired, slot.locks_wait_us) == (5 * times, 900 * times)
    probe = Probe.__new__(Probe)
    probe._scoreboard = scoreboard
    status, text = probe._metrics()
    assert status == 200
    for name, total in (("acquired", 10), ("failed", 6), ("reentered", 2)):
        assert f"jobqueue_worker_locks_{name}_total {total}.0" in text
    assert "# TYPE jobqueue_worker_locks_acquired_total counter" in text
