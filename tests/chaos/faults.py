"""The faults of a trial: which come when is drawn from the seed, and what each one hits when it comes."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from tests.proxy import COMMIT
from tests.settings import VENDOR

#: of all workers and relays of a trial
LEASE_SECONDS = 6.0
#: longer than a lease
LONG = LEASE_SECONDS + 3
#: in a full trial of thirty seconds
PER_SECOND = 2.2
#: what the proxy looks for: ends of transactions, any request
NEEDLES = (COMMIT, COMMIT, ".")
TABLES = ("job_queue", "job_queue", "job_worker", "job_lane", "job_outbox")


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule. `draw` seeds what it leaves open, so that it stays the same if others are left out."""

    number: int
    at: float
    kind: str
    draw: float

    @property
    def random(self):
        """The same numbers each time."""
        return random.Random(self.draw)


def schedule(database, seed, seconds, outages=True):
    """The faults of a seed, in order: each kind once, if there is time for that, and the others by weight."""
    rng = random.Random(f"{database} {seed}")
    weights = {
        kind.__name__: weight
        for kind, (weight, place) in KINDS.items()
        if (database != "sqlite" or place == ANYWHERE) and (outages or place != SERVER)
    }
    count = round(seconds * PER_SECOND)
    # One outage for sure, and not one of each sort: most of the time the others need a server.
    left_out = rng.choice(("crash_server", "restart_server"))
    kinds = [kind for kind in weights if kind != left_out]
    rng.shuffle(kinds)
    kinds += rng.choices(list(weights), list(weights.values()), k=max(0, count - len(kinds)))
    # The rare and heavy ones among the others, and none before the workers have something to do.
    kinds = kinds[:count]
    rng.shuffle(kinds)
    times = sorted(rng.uniform(2, seconds) for _ in kinds)
    return [Fault(n, round(at, 2), kind, rng.random()) for n, (at, kind) in enumerate(zip(times, kinds, strict=True))]


def kill_whole(program):
    """kill -9 of a program with all its processes."""
    program.killed()
    with suppress(ProcessLookupError):
        program.group.signal_all(signal.SIGKILL)


def kill_child(trial, fault):
    """kill -9 of a child or monitor."""
    rng = fault.random
    worker = rng.choice(trial.workers)
    if pids := [pid for pid in worker.group.members() if pid != worker.group.pid]:
        worker.child_killed()
        kill(rng.choice(pids), signal.SIGKILL)


def kill_worker(trial, fault):
    """kill -9 of a supervisor with all its children."""
    kill_whole(fault.random.choice(trial.workers))


def kill_supervisor(trial, fault):
    """kill -9 of a supervisor alone: its children see it and end."""
    worker = fault.random.choice(trial.workers)
    worker.killed()
    kill(worker.group.pid, signal.SIGKILL)


def kill_load(trial, fault):
    """kill -9 of a producer, a relay, a reaper or the operator."""
    kill_whole(fault.random.choice(trial.helpers))


def terminate(trial, fault):
    """SIGTERM: the worker ends in order."""
    worker = fault.random.choice(trial.workers)
    worker.terminated()


def freeze_process(trial, fault):
    """SIGSTOP of one process, for a moment or for longer than a lease."""
    rng = fault.random
    members = rng.choice(trial.workers).group.members()
    if members:
        freeze(trial, [rng.choice(sorted(members))], rng.choice((1, 3, LONG)))


def freeze_worker(trial, fault):
    """SIGSTOP of a whole worker."""
    rng = fault.random
    freeze(trial, rng.choice(trial.workers).group.members(), rng.choice((2, LONG)))


def freeze(trial, pids, seconds):
    """Stop processes, and let them go on later."""
    trial.stops.append((time.time(), time.time() + seconds))
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    trial.after(seconds, lambda: [kill(pid, signal.SIGCONT) for pid in pids])


def kill(pid, number):
    """Unless it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_sessions(trial, fault):
    """End some or all sessions."""
    rng = fault.random
    found = trial.sessions()
    some = rng.sample(found, min(len(found), rng.choice((1, 2, 5, len(found)))))
    end = "SELECT pg_terminate_backend({})" if VENDOR == "postgres" else "KILL {}"
    for session in some:
        trial.ask(end.format(session))


def cancel_statements(trial, fault):
    """End what all sessions do at this moment, and not the sessions."""
    end = "SELECT pg_cancel_backend({})" if VENDOR == "postgres" else "KILL QUERY {}"
    for session in trial.sessions():
        trial.ask(end.format(session))


def cut_answers(trial, fault):
    """The server carries out some requests, and the answers are lost."""
    rng = fault.random
    trial.proxy.cut(rng.choice(NEEDLES), rng.choice((1, 2, 5, 10)))


def lose_requests(trial, fault):
    """Some requests do not reach the server."""
    rng = fault.random
    trial.proxy.lose(rng.choice(NEEDLES), rng.choice((1, 2, 5, 10)))


def end_links(trial, fault):
    """All sessions end at once, on the way."""
    trial.proxy.end_sessions()


def silence(trial, fault):
    """No byte passes, and nothing is closed."""
    trial.proxy.silent_until = time.monotonic() + fault.random.choice((1, 3, LONG))


def slowness(trial, fault):
    """Each answer takes longer."""
    rng = fault.random
    trial.proxy.slow_seconds = rng.choice((0.02, 0.1))
    trial.proxy.slow_until = time.monotonic() + rng.choice((1, 3))


def refuse_sessions(trial, fault):
    """No new session is accepted."""
    trial.proxy.closed_until = time.monotonic() + fault.random.choice((1, 3))


def crash_server(trial, fault):
    """kill -9 of the server, and its start."""
    trial.outage(lambda server: server.kill(), fault.random.choice((0, 2)))


def restart_server(trial, fault):
    """An ordered restart."""
    trial.outage(lambda server: server.stop(), fault.random.choice((0, 1)))


def freeze_server(trial, fault):
    """SIGSTOP of the server."""
    trial.freeze_server(fault.random.choice((1, 3)))


def hold_rows(trial, fault):
    """A session keeps rows of waiting and running jobs locked; on SQLite, the file."""
    rng = fault.random

    def lock(cursor):
        if VENDOR == "sqlite":
            cursor.execute("BEGIN IMMEDIATE")
            return
        cursor.execute("BEGIN")
        cursor.execute("SELECT id FROM job_queue WHERE status < 2 ORDER BY id LIMIT 60")
        ids = [row[0] for row in cursor.fetchall()]
        if ids:
            some = ", ".join(map(str, rng.sample(ids, min(len(ids), 8))))
            cursor.execute(f"SELECT id FROM job_queue WHERE id IN ({some}) FOR UPDATE SKIP LOCKED")
            cursor.fetchall()

    trial.hold(rng.choice((1, 3)) if VENDOR == "sqlite" else rng.choice((1, 3, LONG)), lock)


def hold_table(trial, fault):
    """A session has a table for itself, as ALTER TABLE has."""
    rng = fault.random
    table = rng.choice(TABLES)

    def lock(cursor):
        if VENDOR == "postgres":
            cursor.execute("BEGIN")
            cursor.execute("SET LOCAL lock_timeout = '3s'")
            cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        else:
            cursor.execute("SET SESSION lock_wait_timeout = 3")
            cursor.execute(f"LOCK TABLES {table} WRITE")

    trial.hold(rng.choice((1, 3)), lock)


def hold_snapshot(trial, fault):
    """An old snapshot stays open."""

    def look(cursor):
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if VENDOR == "postgres" else "BEGIN")
        cursor.execute("SELECT COUNT(*) FROM job_queue")
        cursor.fetchall()

    trial.hold(fault.random.choice((5, 10)), look)


ANYWHERE, WIRE, SERVER = range(3)
#: weight, and what it needs
KINDS = {
    kill_child: (8, ANYWHERE), kill_worker: (2, ANYWHERE), kill_supervisor: (1, ANYWHERE),
    kill_load: (2, ANYWHERE), terminate: (2, ANYWHERE), freeze_process: (4, ANYWHERE),
    freeze_worker: (1, ANYWHERE), hold_rows: (3, ANYWHERE), hold_snapshot: (1, ANYWHERE),
    kill_sessions: (6, WIRE), cancel_statements: (3, WIRE), cut_answers: (9, WIRE), lose_requests: (5, WIRE),
    end_links: (2, WIRE), silence: (2, WIRE), slowness: (2, WIRE), refuse_sessions: (2, WIRE),
    hold_table: (2, WIRE), crash_server: (0.3, SERVER), restart_server: (0.2, SERVER),
    freeze_server: (0.5, SERVER),
}  # fmt: skip
BY_NAME = {kind.__name__: kind for kind in KINDS}
