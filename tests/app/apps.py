"""The host app of the tests."""

import os
import sys
import time
from datetime import timedelta

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
        if spans := os.environ.get("JOBQUEUE_TEST_SPANS"):
            _trace(spans)
        if page := os.environ.get("JOBQUEUE_TEST_PAGE"):
            _do_as_it_says(page)
        if "relay_outbox" in sys.argv:
            from jobqueue.management.commands import relay_outbox

            relay_outbox.HELD_SECONDS = _own("HELD", relay_outbox.HELD_SECONDS)
        if offset := float(os.environ.get("JOBQUEUE_TEST_CLOCK_OFFSET", 0)):
            _shift_the_clock(offset)
        if "JOBQUEUE_TEST_PARTY" in os.environ:
            from tests.app import party  # noqa: F401
        if folder := os.environ.get("JOBQUEUE_TEST_FREEZE"):
            from tests.app import freezing

            freezing.install(folder)
        if "runworker" in sys.argv and "JOBQUEUE_TEST_LOG" in os.environ:
            _be_patient()
            if "JOBQUEUE_TEST_TELL_FAILURES" in os.environ:
                _tell_failures()


def _own(name, default):
    """What this test says instead."""
    return float(os.environ.get(f"JOBQUEUE_TEST_{name}_SECONDS", default))


def _shift_the_clock(offset):
    """The host's clock as this process sees it is so many seconds ahead."""
    from jobqueue.db import clock

    right = clock.host_now
    clock.host_now = lambda: right() + timedelta(seconds=offset)


def _be_patient():
    """A worker on a busy machine waits longer for what may fail to come at all."""
    from jobqueue.maintenance import gate_sweep
    from jobqueue.worker import supervisor
    from jobqueue.worker.monitor import housekeeping, monitor, stopping, troubles
    from jobqueue.worker.run import pool
    from jobqueue.worker.shared import signal_dispatcher, worker_options

    # For leases to be given back, for the server to see that a child is gone, for a receiver that does not hang.
    supervisor.SETTLE_SECONDS = _own("SETTLE", patient(5))
    monitor.UNLOCKED_SECONDS = _own("UNLOCKED", patient(2))
    signal_dispatcher.STUCK_SECONDS = _own("STUCK", patient(0.6))
    # For a child that is to be killed to answer, and for the other jobs in it to end.
    stopping.ANSWER_SECONDS = _own("ANSWER", patient(0.4))
    stopping.GRACE_SECONDS = _own("GRACE", patient(1))
    # Before the end of its lease, for a child that a signal has stopped.
    stopping.FROZEN_SECONDS = patient(stopping.FROZEN_SECONDS)
    # What is claimed ahead goes back after a second, and a busy worker may not get to claim ahead within it.
    pool.STALLED_SECONDS = _own("STALLED", pool.STALLED_SECONDS)
    # Its commits are not those of a slow database.
    troubles.COMMIT_SECONDS = _own("COMMIT", patient())
    worker_options.LIVE_SECONDS_MIN = _own("LIVE", worker_options.LIVE_SECONDS_MIN)
    if "JOBQUEUE_TEST_GATE_SWEEP_SECONDS" in os.environ:
        gate_sweep.GateSweep.__init__.__defaults__ = (_own("GATE_SWEEP", None),)
    housekeeping.BATCH = int(os.environ.get("JOBQUEUE_TEST_REAP_BATCH", housekeeping.BATCH))


def _tell_failures():
    """Add evidence when the scoreboard knows how a run has failed: nobody outside sees that before it is written."""
    from jobqueue.worker.shared.scoreboard import LeaseSlot
    from tests.app import tasks

    keep = LeaseSlot.keep_failure

    def keep_and_tell(lease_slot, *words, **options):
        keep(lease_slot, *words, **options)
        with open(tasks.LOG, "a") as log:
            log.write(f"failure-kept {lease_slot.job_id}\n")

    LeaseSlot.keep_failure = keep_and_tell


def _trace(path):
    """Each child of a worker writes its spans to a file, one JSON object a line, late enough to need the last flush."""
    from jobqueue import otel
    from jobqueue.signals import worker_started

    otel.FLUSH_SECONDS = patient(otel.FLUSH_SECONDS)

    def send_spans(**_):
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        exporter = ConsoleSpanExporter(out=open(path, "a"), formatter=lambda span: span.to_json(indent=None) + "\n")  # noqa: SIM115
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
        trace.set_tracer_provider(provider)

    worker_started.connect(send_spans, weak=False)
    otel.JobQueueInstrumentor().instrument()


def _do_as_it_says(page):
    """Run the first two blocks of a page: the settings, and the receivers."""
    from tests.docs.markdown import ROOT, pieces

    space = {"__name__": "tests.app.page"}
    for piece in [piece for piece in pieces(ROOT / page) if piece.kind == "python"][:2]:
        exec(compile("\n" * piece.line + piece.text, piece.page, "exec"), space)
    # Receivers are held weakly.
    sys.modules["tests.app"].page = space


def _wait_at(gate):
    """Until the file appears; a line in another one tells that somebody waits."""
    with open(f"{gate}.reached", "a") as reached:
        reached.write("here\n")
    while not os.path.exists(gate):
        time.sleep(0.02)
