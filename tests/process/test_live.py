"""/live of real workers: 503 if claims make no progress, 200 while a new process would do no better."""

import time

import pytest

from jobqueue.flow import pause
from jobqueue.models import Worker
from tests.app import tasks
from tests.factories import state
from tests.marks import committed
from tests.outbox.helpers import other_connection
from tests.patience import patient, wait_until
from tests.process.harness import kill_sessions
from tests.process.probe import free_port, starts
from tests.proofs.test_probes import get
from tests.settings import VENDOR

pytestmark = committed
on_a_server = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no server")


class Watched:
    """A worker with a probe. Its children may go without a look for as long as a lease lasts."""

    def __init__(self, start, *options, **environment):
        self.port, self.seconds = free_port(), round(patient(1))
        lease = ("--lease", f"{self.seconds}s", "--heartbeat", "0.5s")
        probe = ("--probe-port", self.port)
        self.group = start("runworker", *lease, *probe, *options, JOBQUEUE_TEST_LIVE_SECONDS="1", **environment)
        wait_until(lambda: self.ask("/ready")[0] == 200, what="readiness")
        self.child = Worker.objects.get().pid

    def ask(self, path="/live"):
        """Status and words."""
        return get(self.port, path)

    def dies(self):
        """Wait until it is not live any more; the words."""
        wait_until(lambda: self.ask()[0] == 503, what="an answer 503")
        return self.ask()[1]

    def revives(self):
        """Wait until it is live again."""
        wait_until(lambda: self.ask()[0] == 200, what="an answer 200")

    def stays_live(self):
        """It is live at each look for longer than its limit."""
        over_at = time.monotonic() + 1.5 * self.seconds

        def look():
            assert self.ask() == (200, "live\n")
            return time.monotonic() > over_at

        wait_until(look, what="the end of the time in which it might have died")


@pytest.fixture
def watched(start):
    """Start such a worker."""
    return lambda *options, **environment: Watched(start, *options, **environment)


def test_a_child_that_a_signal_has_stopped_is_not_live_until_it_goes_on(watched):
    worker = watched()
    begun = time.monotonic()
    worker.group.freeze(worker.child)
    assert f"process {worker.child} has not looked for jobs" in worker.dies()
    assert time.monotonic() - begun > worker.seconds / 2
    assert "a signal has stopped it" in worker.ask()[1]
    worker.group.thaw(worker.child)
    worker.revives()


@on_a_server
def test_a_claim_that_waits_for_its_statement_is_not_live(watched):
    worker = watched()
    with other_connection() as other:
        with other.cursor() as cursor:
            if VENDOR == "postgres":
                cursor.execute("BEGIN")
                cursor.execute("LOCK TABLE job_queue IN ACCESS EXCLUSIVE MODE")
            else:
                cursor.execute("LOCK TABLES job_queue WRITE")
        assert "has not looked for jobs" in worker.dies()
        with other.cursor() as cursor:
            cursor.execute("ROLLBACK" if VENDOR == "postgres" else "UNLOCK TABLES")
    worker.revives()


@on_a_server
def test_a_claim_whose_connections_hang_is_not_live_although_the_monitor_has_an_answer(watched, proxied):
    proxy, through = proxied
    worker = watched(**through)
    proxy.deaf.set()
    proxy.arm(rb"(?s)default.*SKIP LOCKED")
    job_id = tasks.add.enqueue(1, 2).id
    assert "has not looked for jobs" in worker.dies()
    proxy.deaf.clear()
    worker.revives()
    wait_until(lambda: state(job_id) == "DONE", what="the job")


def test_a_worker_that_is_busy_or_paused_is_live(watched, evidence, gate):
    pause("default", reason="a test")
    worker = watched("--concurrency", 2)
    for _ in range(2):
        tasks.gated.using(queue_name="other").enqueue(str(gate))
    waiting = tasks.add.enqueue(1, 2).id
    starts(evidence, 2)
    worker.stays_live()
    gate.touch()
    assert state(waiting) == "READY"


@on_a_server
def test_a_worker_without_a_database_is_live_and_not_ready(watched, account):
    worker = watched(**account.environment())
    account.set_password("changed")
    kill_sessions()
    wait_until(lambda: worker.ask("/ready")[0] == 503, what="an answer 503 of /ready")
    worker.stays_live()
    assert worker.ask("/ready") == (503, "the database is unreachable\n")
    account.set_password(account.password)
    wait_until(lambda: worker.ask("/ready")[0] == 200, what="readiness")
    worker.stays_live()


@on_a_server
def test_a_worker_that_is_refused_more_connections_is_live(watched, account):
    worker = watched(**account.environment())
    account.set_limit(1)
    kill_sessions()
    wait_until(lambda: "the database is unreachable" in worker.group.text(), what="a refusal")
    worker.stays_live()
    account.set_limit(None)
    worker.group.prints("the database answers again")
