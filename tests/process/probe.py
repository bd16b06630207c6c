"""What tests look at while workers run: their evidence, their metrics, what they hold open in the database."""

import re
import socket
import sqlite3
import time
import urllib.request
from contextlib import closing
from pathlib import Path

from django.db import connection

from tests.blocking import let_lists_expire
from tests.factories import expire, job, seconds_from_now
from tests.patience import patient, wait_until
from tests.settings import VENDOR

OPEN = {
    "mysql": (
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
        "ON id = trx_mysql_thread_id WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    ),
    "postgres": (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND xact_start IS NOT NULL AND backend_type = 'client backend'"
    ),
}


def starts(evidence, count=1):
    """The evidence lines of at least `count` starts: event, pid, job, attempt, fence and what the job adds."""
    return wait_until(
        lambda: (lines := evidence.read("start")) and len(lines) >= count and lines, what=f"{count} starts"
    )


def renewed(job_id, times=3):
    """Wait until the lease of a job was renewed so often. One that has run out is not: so it had not."""
    seen = {job(job_id).lock_until}

    def look():
        seen.add(found := job(job_id).lock_until)
        assert found is not None, "the lease has run out"
        return len(seen) > times

    wait_until(look, what=f"{times} renewals")


def let_run_out(job_id, lease_seconds=20):
    """Let the lease of a job end, once four seconds of heartbeats have not renewed it: the rest need not be awaited."""
    left = lease_seconds - 4
    wait_until(lambda: seconds_from_now(job(job_id).lock_until) < left, what="a lease that is not renewed")
    expire(int(job_id))


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def monitor_of(group, *children):
    """The monitor of a worker: what was started last of all that is neither the supervisor nor one of these children.

    The process that writes log lines is older.
    """
    return max(set(group.members()) - {group.pid, *children}, key=age_of)


def age_of(pid):
    """What orders processes by their age, the oldest first."""
    # Two that were started within one tick of the clock (10 ms) differ by their numbers.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]), pid


def metric(port, name):
    """One figure of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patient()) as answer:
        found = re.search(rf"^jobqueue_worker_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1])


def nothing_is_open(looks=1):
    """Whether no other session of the test database was within a transaction, at one of so many looks.

    What a frozen process holds is there at each of them; what others do beside it is over at some.
    """
    return any(_open_transactions() == 0 for _ in range(looks))


def _open_transactions():
    if VENDOR == "sqlite":
        return int(_is_being_written())
    if connection.vendor == "mysql":
        let_lists_expire()
    with connection.cursor() as cursor:
        cursor.execute(OPEN["postgres" if VENDOR == "postgres" else "mysql"])
        return cursor.fetchone()[0]


def _is_being_written():
    with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        other.execute("ROLLBACK")
        return False


def wait_until_asleep(pids):
    """The main threads of these processes sleep, and have for a second, without a break.

    One that looks at the queue every few milliseconds wakes for each look, and on a busy machine it may wait for its
    turn meanwhile, which is no sleep.
    """
    seen, since = None, 0.0

    def look():
        nonlocal seen, since
        found = [sleeps_of(pid) for pid in pids]
        if None in found or found != seen:
            seen, since = found, time.monotonic()
        return time.monotonic() - since > 1

    wait_until(look, what="processes that sleep")


def sleeps_of(pid):
    """How often the main thread has gone to sleep; None if it does not sleep now."""
    try:
        words = _status(pid)
    except OSError:
        return None
    return int(words["voluntary_ctxt_switches"]) if words["State"].split()[0] == "S" else None


def turns_of(pid):
    """How often the main thread has gone to sleep: at least once in each turn of its loop."""
    return int(_status(pid)["voluntary_ctxt_switches"])


def _status(pid):
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines())
