"""Named tasks and handlers that succeed, fail and misbehave in every way a worker must survive."""

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

from django.db import IntegrityError, connection
from django.db.models import F

from jobqueue import current_job, handler, task
from jobqueue.base.compat import TaskContext
from jobqueue.counter import ShardedCounter
from jobqueue.exceptions import Discard, LockNotAcquired, Retry, Snooze, SoftTimeout
from jobqueue.idempotency import once
from jobqueue.locks import lease_lock
from jobqueue.models import Job
from jobqueue.outbox import subscriber
from jobqueue.testing import inject
from tests.app.models import Account, Ticket
from tests.observer import attend

LOG = os.environ.get("JOBQUEUE_TEST_LOG", "/dev/null")
logger = logging.getLogger("tests.app")
#: the import of this module ends when this file appears
IMPORT_GATE = os.environ.get("JOBQUEUE_TEST_IMPORT_GATE")
if IMPORT_GATE:
    open(f"{IMPORT_GATE}.reached", "w").close()
    while not os.path.exists(IMPORT_GATE):
        time.sleep(0.01)


def note(event, *rest):
    """One line in the evidence file: written at once, survives kill -9."""
    job = current_job()
    words = [event, str(os.getpid()), str(job.job_id), str(job.attempt), str(job.fence), *map(str, rest)]
    fd = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (" ".join(words) + "\n").encode())
    os.close(fd)


@subscriber("proof.*")
def heard(event):
    """One line outside of any database, then an effect behind the inbox."""
    fd = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"heard {event.id} {event.key} {event.payload['n']} {os.getpid()}\n".encode())
    os.close(fd)
    time.sleep(event.payload.get("seconds", 0))
    with once(("heard", event.id)) as o:
        if not o.done:
            Account.objects.filter(owner=event.key).update(balance=F("balance") + 1)


@task
def add(a, b):
    note("effect", a, b)
    return a + b


@task
def greet(name, count):
    return f"{name} {count}"


@task(takes_context=True, max_attempts=1)
def counts(context, total, how="returns"):
    """Reports its progress after every step, and logs."""
    from django.db import transaction

    for done in range(1, total + 1):
        context.progress(done, total, "counting")
        logger.warning("step %d", done)
    if how == "raises":
        raise ValueError(how)
    if how == "leaves a transaction open":
        transaction.set_autocommit(False)
        context.progress(total + 1, total)
    if how == "finishes":
        with context.finish(result="kept"):
            context.progress(total + 1, total)


@task
def ordered(n):
    """Notes its number, and when it is over."""
    note("begins", n)
    time.sleep(0.002)
    note("ends", n)


@task(ordering_key=lambda key: key or None)
def keyed(key):
    """Runs in order with those of the same argument."""


@task(max_attempts=1)
def reports_and_waits(path):
    """Tells how far it is, and goes on when a file appears."""
    current_job().progress(1, 2, "waiting")
    logger.warning("about to wait")
    while not os.path.exists(path):
        time.sleep(0.01)
    current_job().progress(2, 2)
    raise ValueError("at last")


@task(max_attempts=1)
def is_wrong(name):
    """Its code is at fault: waiting does not help."""
    note("start")
    raise WRONG[name]("by itself")


WRONG = {error.__name__: error for error in (AttributeError, IntegrityError, NotImplementedError, RuntimeError)}


@task(max_attempts=1000)
def depends_on(path):
    """Calls something outside, which is up when a file is there."""
    note("start")
    if not os.path.exists(path):
        raise ConnectionRefusedError("nobody listens")
    note("effect")


@task(max_attempts=2)
def waits_and_fails(path, permanent):
    """Fails when a file appears; the result of a permanent failure cannot be stored."""
    note("start")
    while not os.path.exists(path):
        time.sleep(0.01)
    note("fails")
    if permanent:
        return {1}
    raise ValueError("at last")


@task
def closes_its_streams():
    """As a library does that makes a daemon of its process."""
    sys.stdout.close()
    sys.stderr.close()


@task(max_attempts=3)
def boom():
    note("start")
    raise ValueError("boom")


@task(max_attempts=3)
def die():
    note("start")
    os._exit(9)


@task
def leave():
    note("start")
    sys.exit(3)


@task
def interrupt():
    note("start")
    raise KeyboardInterrupt


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


@task(max_attempts=1)
def unprintable():
    note("start")
    raise Unprintable


@task
def unstorable():
    note("effect")
    return object()


@task
def sleep(seconds):
    note("start")
    time.sleep(seconds)
    note("effect")


@task
def spins():
    """Never waits, and never looks whether it is to stop."""
    note("start")
    while True:
        pass


@task(takes_context=True)
def patient(context, seconds):
    note("start")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not context.should_stop:
        time.sleep(0.02)
    note("effect", int(context.should_stop))
    return context.should_stop


@task(takes_context=True)
def introduces_itself(context):
    """What the context says about its own run."""
    return [context.task_result.id, context.attempt, isinstance(context, TaskContext)]


@task
async def coroutine(a):
    note("effect")
    return a * 2


@task
async def sleeps_as_a_coroutine(seconds):
    await asyncio.sleep(seconds)


@handler("webhooks")
def deliver(payload):
    note("effect", payload["n"])
    return {"seen": payload["n"]}


@task(max_attempts=1000)
def observed(address, name, seconds):
    """Runs for some time before the eyes of an observer."""
    with attend(address, name):
        time.sleep(seconds)


@task(max_attempts=1000)
def observed_until(address, name, path):
    """Runs before the eyes of an observer until a file appears."""
    with attend(address, name):
        while not os.path.exists(path):
            time.sleep(0.01)


@task(max_attempts=1000)
def observed_by_process(address, fails):
    """Runs for a moment; an observer recognises it by the id of its process."""
    with attend(address, str(os.getpid())):
        time.sleep(0.005)
    if fails:
        raise ValueError("as it was asked to")


@task(max_attempts=1000)
def buys(url):
    """Calls a service over HTTP."""
    note("run")
    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()


@task
def asks_another_database(seconds):
    """With the driver alone, as of a server that is not in DATABASES."""
    from MySQLdb import connect

    parameters = connection.get_connection_params()
    names = {name: parameters[name] for name in ("user", "passwd", "password", "host", "port") if name in parameters}
    with connect(**names).cursor() as cursor:
        cursor.execute("SELECT SLEEP(%s)", [seconds])


@task
def uses_the_database(seconds):
    """Holds the connection of its thread for a while."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    time.sleep(seconds)


@task
def holds_a_connection(path):
    """Holds that of its thread until a file appears."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    note("start")
    while not os.path.exists(path):
        time.sleep(0.01)


@task
def leaves_sockets_open(path):
    """Until a file appears, keeps open almost as many descriptors as its process may have, which are few."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = len(os.listdir("/proc/self/fd")) + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    opened = [socket.socket() for _ in range(60)]
    note("start", str(most))
    try:
        while not os.path.exists(path):
            time.sleep(0.01)
    finally:
        for one in opened:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@task
def work(seconds):
    """A job of a known length that leaves no trace of its own."""
    time.sleep(seconds)


@task(ack_each=True)
def work_acked_each(seconds):
    """The same, whose end is committed by itself."""
    time.sleep(seconds)


@task
def gated(path):
    """Runs until a file appears: the test decides when it ends."""
    note("start")
    while not os.path.exists(path):
        time.sleep(0.01)
    note("effect")


@task
def claimed_together():
    """Tells how many jobs of its claim have not ended yet."""
    mine = Job.objects.filter(pk=current_job().job_id).values("lock_token")
    note("start", Job.objects.filter(lock_token__in=mine).count())


@task
def finishes_when(path):
    """Is inside finish(), its row locked, until a file appears."""
    note("start")
    with current_job().finish():
        while not os.path.exists(path):
            time.sleep(0.01)


@task
def finishes_in_the_server(seconds):
    """Its row stays locked by a statement that goes on in the server when the process is gone."""
    note("start")
    sleeps = {"postgresql": "SELECT pg_sleep(%s)", "mysql": "SELECT SLEEP(%s)"}[connection.vendor]
    with current_job().finish(), connection.cursor() as cursor:
        cursor.execute(sleeps, [seconds])


@task(hard_timeout_seconds=1.5, max_attempts=1)
def forks_and_hangs():
    """The fork comes back at once, and then the job hangs."""
    pid = os.fork()
    if pid == 0:
        return
    os.waitpid(pid, 0)
    note("start")
    time.sleep(600)


@task
def enqueues_late(now, path):
    """Enqueues when a file appears, and runs until another one does."""
    note("start")
    while not os.path.exists(now):
        time.sleep(0.01)
    add.enqueue(1, 2)
    while not os.path.exists(path):
        time.sleep(0.01)


@task(max_attempts=1)
def strange(kind):
    note("start")
    raise STRANGE[kind]()


def _deep():
    return _deep()


def _raise(error):
    raise error


STRANGE = {
    "generator exit": GeneratorExit,
    "nested": lambda: ValueError(ValueError("inside")),
    "group": lambda: ExceptionGroup("g", [ValueError("a"), Unprintable()]),
    "base group": lambda: BaseExceptionGroup("b", [SystemExit(1), KeyboardInterrupt()]),
    "huge": lambda: ValueError("x" * 10_000_000),
    "nul": lambda: ValueError("a\x00b\ud800"),
    "recursion": _deep,
    "memory": MemoryError,
    "stop": StopIteration,
    "exit": lambda: SystemExit("bye"),
    "class": lambda: _raise(type("C\x00\ud800", (BaseException,), {})("x")),
}


ENDS = {
    "retry": lambda: Retry(30),
    "back-off": Retry,
    "snooze": lambda: Snooze("2m"),
    "discard": lambda: Discard("the order was deleted"),
}


@task(max_attempts=2, no_retry_on=Exception)
def asks(how):
    note("start")
    raise ENDS[how]()


@task(max_attempts=2, no_retry_on=Exception)
async def asks_as_a_coroutine(how):
    await asyncio.sleep(0)
    raise ENDS[how]()


@task(takes_context=True)
def asks_inside_finish(context, how):
    with context.finish():
        Ticket.objects.create(number="undone", sold=True)
        raise ENDS[how]()


@task(max_attempts=2)
def killed_by(number):
    note("start")
    os.kill(os.getpid(), number)
    time.sleep(30)


@task(max_attempts=2)
def reads_null():
    """A bad pointer in C code."""
    note("start")
    ctypes.string_at(0)


@task
def hold_the_gil(fifo):
    """Waits in C, without letting any other thread of the process run, until somebody opens the FIFO to write."""
    note("start")
    ctypes.PyDLL(None).open(os.fsencode(fifo), os.O_RDONLY)
    note("effect")


@task
def leaves_a_transaction_open():
    from django.db import connection, transaction

    note("start")
    transaction.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    note("effect")


@task(timeout_seconds=0.5, max_attempts=1)
def overlong():
    try:
        note("start")
        while True:
            time.sleep(0.02)
    except SoftTimeout:
        note("cleanup")
        raise


@task(hard_timeout_seconds=1.0, max_attempts=2)
def stuck():
    note("start")
    time.sleep(600)


@task(hard_timeout_seconds=1.0, max_attempts=1)
def hog():
    """Holds the interpreter's lock: no other thread of the process runs any more."""
    note("start")
    re.match(r"(a+)+$", "a" * 60 + "b")


@task(ack_each=True)
def count_done():
    from jobqueue.models import Job

    return Job.objects.filter(status=Job.Status.DONE).count()


class _Unformattable(str):
    def __format__(self, spec):
        raise RuntimeError("no")

    replace = encode = __format__


class Unspeakable(Exception):
    def __str__(self):
        return _Unformattable("x")


@task(max_attempts=1)
def unspeakable():
    note("start")
    raise Unspeakable


@task
def forks(how):
    """Its second process does not end itself with os._exit()."""
    note("start")
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    if how == "exits":
        sys.exit(0)
    if how == "raises":
        raise ValueError("in the fork")
    gc.collect()


@task(max_attempts=1)
def forks_inside_a_transaction():
    from django.db import connection, transaction

    note("start")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        if not (pid := os.fork()):
            with connection.cursor() as mine:
                mine.execute("SELECT 2")
            return None
        os.waitpid(pid, 0)
        cursor.execute("SELECT 3")
        return cursor.fetchone()[0]


@task
def terminates_its_own_process():
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[600])
    process.start()
    time.sleep(0.1)
    process.terminate()
    process.join(10)
    if process.is_alive():
        process.kill()
    return process.exitcode


@task
def interrupts_a_program():
    """The status of a program that it has started and stopped as Ctrl-C does."""
    code = "import time; print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        program.send_signal(signal.SIGINT)
        return program.wait()


@task
def activates():
    """What it found, before it activates something else."""
    from django.utils import timezone, translation

    found = [timezone.get_current_timezone_name(), translation.get_language()]
    timezone.activate("Asia/Seoul")
    translation.activate("ko")
    return found


@task(max_attempts=1)
def finishes_and_rolls_back():
    from django.db import transaction

    with transaction.atomic():
        with current_job().finish("done"):
            pass
        raise ValueError("after finish()")


@task
def takes_a_lock(name: str) -> None:
    """Holds a lease lock for a moment, and does not get it a second time."""
    with lease_lock(name, 60), suppress(LockNotAcquired):
        lease_lock(name, 60, timeout_seconds=0).acquire()


@task
def is_refused_once() -> None:
    """Adds to a counter, at the second try: the first one is undone for a deadlock."""
    with inject("deadlock", at="job_counter"):
        ShardedCounter("refused").add()


from tests.app import batches, coroutines, finishing, kit, leftovers, subscribers  # noqa: E402, F401


@task
def tell_tick():
    """The tick of the schedule that has added the job."""
    tick = current_job().tick
    return tick and tick.isoformat()


@task
def tell_parents():
    """The results of the parents, by the names of the nodes."""
    return dict(current_job().parents)


SEEN: list[object] = []


@task()
def group_succeeded():
    """A callback."""


@task()
def group_failed():
    """A callback."""


@task()
def group_done():
    """A callback."""


@task()
def look_at_group():
    g = current_job().group
    SEEN.append(g and (g.id, g.name, g.total, g.done, g.failed, g.canceled, list(g.results())))


@task()
def grow(depth):
    if depth:
        current_job().group.add(grow, depth - 1)
    return depth


@task()
def fan_out(count):
    """Add so many nodes to the workflow."""
    for number in range(count):
        current_job().group.add(add, number, number)
    return count


@task(max_attempts=1)
def grow_late():
    current_job().group.add(grow, 0)


@task(max_attempts=1)
def leaks(secret):
    """Fail with an error whose message has a secret."""
    raise ValueError(f"connect failed {secret}")


@task
def discards(reason):
    """End as discarded."""
    raise Discard(reason)


@task(queue_name="limited", concurrency_limit=int(os.environ.get("JOBQUEUE_TEST_LIMIT", 0)) or None)
def limited_by_its_code():
    """At most so many of it run at once as the environment of the process says."""
    time.sleep(0.05)
