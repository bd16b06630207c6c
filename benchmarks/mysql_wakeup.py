"""An experiment: a session in SLEEP() that the enqueuer ends with KILL QUERY, as a wake-up inside MySQL or MariaDB.

python -m benchmarks.mysql_wakeup URL [JOBS]

Prints the milliseconds from the return of the committed INSERT to the end of the SLEEP, what the wake-up costs the
enqueuer, and what a wake-up by a stale number does. The result is in docs/adr/0008-wakeup.md. No module imports this.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any
from urllib.parse import unquote, urlsplit

import MySQLdb

from benchmarks.stats import percentiles

PAUSE_SECONDS = 0.05


class Sleeper(threading.Thread):
    """Waits for wake-ups on a connection of its own, and records when each SLEEP ended early."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.connection = connect(url)
        self.number = self.connection.thread_id()
        self.woken: list[float] = []

    def run(self) -> None:
        """Sleep and record in a loop."""
        while True:
            try:
                run(self.connection, "SELECT SLEEP(3600)")
            except MySQLdb.Error as error:
                # MariaDB raises error 1317 for a killed query; MySQL returns 1.
                if error.args[0] != 1317:
                    return
            self.woken.append(time.monotonic())


def connect(url: str) -> Any:
    """A driver connection in autocommit mode."""
    parts = urlsplit(url)
    words = {"user": unquote(parts.username or ""), "passwd": unquote(parts.password or "")}
    return MySQLdb.connect(host=parts.hostname, port=parts.port, db=parts.path.strip("/"), autocommit=True, **words)


def run(connection: Any, sql: str) -> Any:
    """Run one statement. Returns its rows."""
    cursor = connection.cursor()
    cursor.execute(sql)
    return cursor.fetchall()


def wake(connection: Any) -> int:
    """Find the sessions that sleep and end their statements, for an enqueuer that knows no worker. Returns how many."""
    found = run(
        connection,
        "SELECT id FROM information_schema.processlist WHERE user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1) "
        "AND info = 'SELECT SLEEP(3600)'",
    )
    for (number,) in found:
        run(connection, f"KILL QUERY {number}")
    return len(found)


def measure(url: str, jobs: int) -> None:
    """Print latency and cost, with a known session number and with a look-up."""
    enqueuer, sleeper = connect(url), Sleeper(url)
    run(enqueuer, "DROP TABLE IF EXISTS wakeup_trial")
    run(enqueuer, "CREATE TABLE wakeup_trial (id BIGINT AUTO_INCREMENT PRIMARY KEY, payload VARCHAR(100))")
    sleeper.start()
    ways = {"id known": lambda: run(enqueuer, f"KILL QUERY {sleeper.number}"), "id looked up": lambda: wake(enqueuer)}
    for name, way in ways.items():
        latency, inserts, costs, lost = [], [], [], 0
        for _ in range(jobs):
            time.sleep(PAUSE_SECONDS)
            seen = len(sleeper.woken)
            begun = time.monotonic()
            run(enqueuer, "INSERT INTO wakeup_trial (payload) VALUES ('x')")
            committed = time.monotonic()
            way()
            done = time.monotonic()
            inserts.append((committed - begun) * 1000)
            costs.append((done - committed) * 1000)
            time.sleep(PAUSE_SECONDS)
            if len(sleeper.woken) == seen:
                lost += 1
            else:
                latency.append((sleeper.woken[seen] - committed) * 1000)
        print(f"{name}: heard {percentiles(latency)} ms, INSERT {percentiles(inserts, (50,))} ms,", end=" ")
        print(f"wake-up {percentiles(costs, (50, 99))} ms, lost {lost} of {jobs}")
    hit = sum(accident(url, enqueuer) for _ in range(20))
    print(f"a wake-up by a number that now belongs to another session ended its UPDATE {hit} times of 20")
    run(enqueuer, "DROP TABLE wakeup_trial")


def accident(url: str, enqueuer: Any) -> int:
    """After a restart the server uses numbers again: 1 if a wake-up by an old number ends an unrelated statement."""
    stranger = connect(url)
    number = stranger.thread_id()
    failed: list[int] = []

    def work() -> None:
        try:
            run(stranger, "UPDATE wakeup_trial SET payload = 'y' ORDER BY id LIMIT 1")
        except MySQLdb.Error as error:
            failed.append(error.args[0])

    run(enqueuer, "BEGIN")
    run(enqueuer, "SELECT id FROM wakeup_trial ORDER BY id LIMIT 1 FOR UPDATE")
    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(PAUSE_SECONDS)
    run(enqueuer, f"KILL QUERY {number}")
    run(enqueuer, "COMMIT")
    thread.join()
    stranger.close()
    return len(failed)


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100)
