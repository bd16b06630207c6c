"""What keeps a job from starting, provoked one cause at a time; each context gives the job to explain."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.db import connection

from jobqueue import enqueue, flow, transitions, workflow
from jobqueue.db.clock import UtcNowPlus
from jobqueue.exceptions import JobLost
from jobqueue.explain import explain_backlog
from jobqueue.models import Job, Worker
from tests.app import tasks
from tests.cli.helpers import read_json
from tests.explain.broken import SlowProxy, end_sessions_of, locked, ports_of, refusing_writes
from tests.factories import claim_one, job, make_job, now, set_columns, settle_run
from tests.patience import wait_until
from tests.process.account import Account
from tests.process.harness import LONG, SHORT
from tests.proxy import cutting_proxy
from tests.settings import VENDOR

HOUR = timedelta(hours=1)
QUEUE = "q"


@dataclass(frozen=True)
class Stage:
    """What a scenario may use: commands as processes, a folder, and tasks of QUEUE with limits."""

    start: Callable[..., object]
    folder: Path
    limited: Callable[..., object]


def claimed():
    """The lease of the next job of QUEUE."""
    return claim_one(QUEUE, worker="crowd")


@contextmanager
def not_due(stage):
    yield enqueue(QUEUE, 1, run_at=now() + HOUR)


@contextmanager
def paused(stage):
    flow.pause(QUEUE, reason="the mail server moves")
    yield make_job(QUEUE)


@contextmanager
def draining(stage):
    job_id = make_job(QUEUE)
    flow.drain(QUEUE, reason="the last day")
    yield job_id


@contextmanager
def key(stage):
    enqueue(QUEUE, 1, ordering_key="k")
    behind = enqueue(QUEUE, 2, ordering_key="k")
    claimed()
    yield behind


@contextmanager
def slot(stage):
    made = stage.limited(concurrency_limit=1)
    made.enqueue()
    claimed()
    yield int(made.enqueue().id)


@contextmanager
def rate(stage):
    made = stage.limited(rate_limit="1/h")
    made.enqueue()
    claimed()
    yield int(made.enqueue().id)


@contextmanager
def breaker(stage):
    job_id = int(stage.limited(dependency="stripe").enqueue().id)
    flow.breaker("stripe").open("they have an outage")
    yield job_id
    flow.breaker("stripe").close()


@contextmanager
def held(stage):
    stage.limited(on_crash="hold").enqueue()
    lease = claimed()
    set_columns(lease.job_id, lock_until=UtcNowPlus(-1))
    transitions.reap()
    yield lease.job_id


@contextmanager
def quarantined(stage):
    job_id = make_job(QUEUE, max_attempts=1)
    assert transitions.fail_many([claimed()], error=JobLost("its process was killed"), delay_seconds=0) == []
    yield job_id


@contextmanager
def parents(stage):
    made = stage.limited()
    wf = workflow("two steps")
    first = wf.add(made, name="first")
    wf.add(made, name="second", after=[first])
    wf.start()
    claimed()
    yield enqueued_last()


def enqueued_last():
    return Job.objects.filter(queue=QUEUE).order_by("-pk").values_list("pk", flat=True)[0]


@contextmanager
def unknown_task(stage):
    job_id = make_job(QUEUE, task="shop.tasks.gone")
    settle_run(claimed(), RuntimeError())
    yield job_id


@contextmanager
def expired(stage):
    yield make_job(QUEUE, expires_at=UtcNowPlus(-1))


def without_others():
    """The worker of the crowd does not serve QUEUE. The next scenario has it serve all queues again."""
    Worker.objects.filter(name="crowd").update(queues=f"*, -{QUEUE}")


@contextmanager
def no_worker(stage):
    without_others()
    yield make_job(QUEUE)


@contextmanager
def workers_busy(stage):
    yield make_job(QUEUE)


@contextmanager
def running(stage):
    job_id = make_job(QUEUE)
    claimed()
    yield job_id


@contextmanager
def ended(stage):
    job_id = make_job(QUEUE)
    transitions.ack(claimed())
    yield job_id


@contextmanager
def monitor_dead(stage):
    job_id = make_job(QUEUE)
    set_columns(claimed().job_id, lock_until=UtcNowPlus(-90))
    yield job_id


@contextmanager
def read_only(stage):
    job_id = make_job(QUEUE)
    with refusing_writes():
        yield job_id


@contextmanager
def row_lock(stage):
    make_job(QUEUE)
    lease = claim_one(QUEUE, worker="crowd", lease_seconds=600)

    def settle():
        try:
            transitions.ack(lease)
        finally:
            connection.close()

    thread = threading.Thread(target=settle)
    with locked(lease.job_id):
        thread.start()
        wait_until(lambda: explain_backlog()[0].code == "row_lock", what="a wait of a second")
        yield make_job(QUEUE)
    thread.join()


@contextmanager
def database_slow(stage):
    job_id = make_job(QUEUE)
    with cutting_proxy(kind=SlowProxy):
        yield job_id


@contextmanager
def clock_skew(stage):
    group = stage.start("runworker", *SHORT, "--queues", QUEUE, "--concurrency", 1, JOBQUEUE_TEST_CLOCK_OFFSET="90")
    waits = [tasks.gated.using(queue_name=QUEUE).enqueue(str(stage.folder / "never")).id for _ in range(2)][1]
    wait_until(lambda: Worker.objects.filter(clock_ahead_seconds__gt=60).exists(), what="a heartbeat")
    yield int(waits)
    group.signal_all(signal.SIGKILL)


@contextmanager
def outside_service(stage):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        job_id = int(tasks.buys.using(queue_name=QUEUE).enqueue(url).id)
        group = stage.start("runworker", *LONG, "--queues", QUEUE, "--concurrency", 1)
        wait_until(lambda: told(job_id) == "outside_service", what="two seconds of waiting")
        yield job_id
        group.signal_all(signal.SIGKILL)


@contextmanager
def hanging(stage):
    job_id = int(tasks.sleep.using(queue_name=QUEUE).enqueue(600).id)
    group = stage.start("runworker", *LONG, "--queues", QUEUE, "--concurrency", 1)
    wait_until(lambda: job(job_id).locked_by, what="the claim")
    set_columns(job_id, locked_at=UtcNowPlus(-700))
    wait_until(lambda: told(job_id) == "hanging", what="two looks")
    yield job_id
    group.signal_all(signal.SIGKILL)


def told(job_id):
    """The first code that `jobs explain` prints; it asks the workers for their stacks."""
    return read_json("explain", str(job_id))["reasons"][0]["code"]


@contextmanager
def host_exhausted(stage):
    without_others()
    gate = stage.folder / "sockets"
    tasks.leaves_sockets_open.using(queue_name=QUEUE).enqueue(str(gate))
    group = stage.start("runworker", *SHORT, "--queues", QUEUE, "--concurrency", "1")
    # More than the worker claims ahead.
    waits = tasks.add.using(queue_name=QUEUE).enqueue_many([(number, 1) for number in range(300)])[-1].id
    wait_until(lambda: told(waits) == "host_exhausted", what="the next heartbeats")
    yield int(waits)
    gate.touch()
    group.signal_all(signal.SIGKILL)


@contextmanager
def no_connection(stage):
    """The server refuses the sessions of a worker, which has lost those that it had."""
    without_others()
    account, gate = Account(), stage.folder / "gate"
    try:
        runs = tasks.gated.using(queue_name=QUEUE, priority=9).enqueue(str(gate)).id
        group = stage.start("runworker", *LONG, "--queues", QUEUE, "--concurrency", 2, **account.environment())
        wait_until(lambda: job(runs).locked_by, what="the claim")
        pid = Worker.objects.exclude(name="crowd").filter(stopped_at=None).latest("pk").pid
        wait_until(lambda: account.sessions() >= 4 and ports_of(pid), what="its sessions")
        if VENDOR == "postgres":
            account.set_limit(1)
        else:
            # These servers do not count sessions that were there before a limit.
            account.set_password("changed")
        assert end_sessions_of(pid)
        waits = tasks.add.using(queue_name=QUEUE).enqueue(1, 2).id
        wait_until(lambda: told(waits) == "connection", what="what the process says")
        yield int(waits)
        group.signal_all(signal.SIGKILL)
    finally:
        account.drop()


#: code -> what provokes it
PROVOKED = {
    made.__name__: made
    for made in (
        not_due, paused, draining, key, slot, rate, breaker, held, quarantined, parents, unknown_task, expired,
        no_worker, workers_busy, row_lock, outside_service, hanging, host_exhausted, database_slow, read_only,
        clock_skew, monitor_dead, running, ended,
    )
} | {"connection": no_connection}  # fmt: skip
#: no single job waits for these; the explanation of the queue names them first
OF_QUEUES = {"draining"}
#: which statement waits for which is found only for the whole queue
OF_BACKLOG = {"row_lock"}
#: keeps no job from starting, so it comes behind reasons that do
LAST = {"clock_skew"}
#: SQLite does not have what these break
NOT_IN_SQLITE = {"row_lock", "database_slow", "connection"}
#: these hold up all jobs, so the backlog names them first, too
OF_ALL = {"row_lock", "read_only", "monitor_dead", "database_slow"}
