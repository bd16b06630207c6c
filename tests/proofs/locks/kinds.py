"""How a process holds each kind of lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

KINDS = ("mutex", "lease", "named", "redis")


@contextmanager
def holding(kind: str, ttl_seconds: float) -> Iterator[object]:
    """The lock on one key for a block, waited for without end; gives the lock."""
    from django.db import transaction

    from jobqueue.locks import lease_lock, mutex, named_lock, redis_lock

    if kind == "mutex":
        with transaction.atomic():
            yield mutex("proof")
    else:
        makers = {
            "lease": lambda: lease_lock("proof", ttl_seconds),
            "named": lambda: named_lock("proof", None),
            "redis": lambda: redis_lock("proof", ttl_seconds),
        }
        with makers[kind]() as lock:
            yield lock


def set_up() -> None:
    """Django, with the Redis server that the test names."""
    import django
    from django.conf import settings

    django.setup()
    settings.JOBQUEUE = {"REDIS_URL": os.environ.get("JOBQUEUE_PROOF_REDIS_URL")}
