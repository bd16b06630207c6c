"""The host app of the tests."""

import os
import sys
import time

from django.apps import AppConfig

from tests.patience import patient


class TestAppConfig(AppConfig):
    """tests.app"""

    name = "tests.app"
    label = "testapp"

    def ready(self):
        """Receivers that misbehave, for workers that are asked for them; patience for all workers."""
        if kind := os.environ.get("JOBQUEUE_TEST_RECEIVERS"):
            from tests.app import receivers

            receivers.connect(kind)
        if gate := os.environ.get("JOBQUEUE_TEST_RECEIVER_GATE"):
            from jobqueue.signals import job_dead

            job_dead.connect(lambda **_: _wait_at(gate), weak=False)
        if "runworker" in sys.argv and "JOBQUEUE_TEST_LOG" in os.environ:
            _be_patient()


def _be_patient():
    """A worker on a busy machine waits longer for what may fail to come at all."""
    from jobqueue.worker import supervisor
    from jobqueue.worker.monitor import monitor
    from jobqueue.worker.run import pool
    from jobqueue.worker.shared import signal_dispatcher

    # For leases to be given back, for the server to see that a child is gone, for a receiver that does not hang.
    supervisor.SETTLE_SECONDS = patient(5)
    monitor.UNLOCKED_SECONDS = float(os.environ.get("JOBQUEUE_TEST_UNLOCKED_SECONDS", patient(2)))
    signal_dispatcher.STUCK_SECONDS = float(
        os.environ.get("JOBQUEUE_TEST_STUCK_SECONDS", signal_dispatcher.STUCK_SECONDS)
    )
    # What is claimed ahead goes back after a second, and a busy worker may not get to claim ahead within it.
    pool.STALLED_SECONDS = float(os.environ.get("JOBQUEUE_TEST_STALLED_SECONDS", pool.STALLED_SECONDS))


def _wait_at(gate):
    """Until the file appears; a line in another one tells that somebody waits."""
    with open(f"{gate}.reached", "a") as reached:
        reached.write("here\n")
    while not os.path.exists(gate):
        time.sleep(0.02)
