"""python -m benchmarks.lock_kinds KIND PROCESSES SECONDS: print how often processes got the lock of one key.

Processes are forked after Django is set up and before anything is connected.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.target import from_environment, rows

KEY = "bench"
TTL_SECONDS = 30.0
REDIS_URL = "JOBQUEUE_TEST_REDIS_URL"


def kinds(target_kind: str) -> list[str]:
    """The contestants of a database, ours first."""
    found = ["mutex", "lease_lock"]
    if target_kind != "sqlite":
        found += ["named_lock", "bare"]
    if REDIS_URL in os.environ:
        found += ["redis_lock", "redis-py"]
    return found


def main(kind: str, processes: int, seconds: float) -> None:
    """Run the processes and print the sum of their counts."""
    import django

    django.setup()
    starting = time.monotonic() + 0.1
    readers = []
    for _ in range(processes):
        reader, writer = os.pipe()
        if not os.fork():
            try:
                os.write(writer, str(count(OURS.get(kind, BARE.get(kind)), starting, seconds)).encode())  # type: ignore[arg-type]
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(writer)
        readers.append(reader)
    counts = [os.read(reader, 20) for reader in readers]
    if not all(counts):
        sys.exit(f"{kind}: a process has ended without a count")
    print(sum(map(int, counts)))


def count(connect: Callable[[], Callable[[], Any]], starting: float, seconds: float) -> int:
    """Count how often this process gets the lock."""
    hold = connect()
    hold()
    time.sleep(max(0.0, starting - time.monotonic()))
    held, ending = 0, time.monotonic() + seconds
    while time.monotonic() < ending:
        hold()
        held += 1
    return held


def _mutex() -> Callable[[], Any]:
    from django.db import transaction

    from jobqueue.locks import mutex

    def hold() -> None:
        with transaction.atomic():
            mutex(KEY)

    return hold


def _ours(name: str, *arguments: Any) -> Callable[[], Callable[[], Any]]:
    def connect() -> Callable[[], Any]:
        from django.conf import settings

        from jobqueue import locks

        settings.JOBQUEUE = {**settings.JOBQUEUE, "REDIS_URL": os.environ.get(REDIS_URL)}

        def hold() -> None:
            with getattr(locks, name)(KEY, *arguments):
                pass

        return hold

    return connect


def _bare() -> Callable[[], Any]:
    target = from_environment()
    connection = target.connect()
    take, give = ("SELECT GET_LOCK('bare', 30)", "SELECT RELEASE_LOCK('bare')")
    if target.kind == "postgres":
        take, give = "SELECT pg_advisory_lock(1)", "SELECT pg_advisory_unlock(1)"

    @contextmanager
    def held() -> Iterator[None]:
        rows(connection, take)
        yield
        rows(connection, give)

    def hold() -> None:
        with held():
            pass

    return hold


def _redis() -> Callable[[], Any]:
    from redis import Redis

    client = Redis.from_url(os.environ[REDIS_URL])

    def hold() -> None:
        with client.lock("bare", timeout=TTL_SECONDS):
            pass

    return hold


OURS: dict[str, Callable[[], Callable[[], Any]]] = {
    "mutex": _mutex,
    "lease_lock": _ours("lease_lock", TTL_SECONDS),
    "named_lock": _ours("named_lock", None),
    "redis_lock": _ours("redis_lock", TTL_SECONDS),
}
BARE: dict[str, Callable[[], Callable[[], Any]]] = {"bare": _bare, "redis-py": _redis}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
