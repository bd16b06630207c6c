"""host_exhausted: the host of a worker lacks memory, file descriptors or disk space, as the worker's row says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.utils.translation import gettext

from jobqueue.explain.explanation import Explanation
from jobqueue.maintenance.worker_rows import RESOURCES
from jobqueue.payload import JSON

#: workers of one host that are named
NAMED = 10
_MB = 2**20


class Short(NamedTuple):
    """A resource that a worker is short of."""

    worker: str
    host: str
    resource: str
    free: int
    limit: int
    of: str


def shortages(worker: str, host: str, troubles: JSON) -> list[Short]:
    """The troubles in the column `troubles` of a worker's row, without those that cannot be read."""
    found = []
    for name in RESOURCES:
        one = troubles.get(name) if isinstance(troubles, dict) else None
        if isinstance(one, dict):
            free, limit = one.get("free"), one.get("limit")
            if isinstance(free, int) and isinstance(limit, int):
                found.append(Short(worker, host, name, free, limit, str(one.get("of"))))
    return found


def host_exhausted(shorts: Sequence[Short]) -> list[Explanation]:
    """One explanation for each host and resource, with the figures of the worker that has least left."""
    groups: dict[tuple[str, str], list[Short]] = {}
    for short in shorts:
        groups.setdefault((short.host, short.resource), []).append(short)
    return [_explanation(sorted(group, key=lambda one: (one.free, one.worker))) for group in groups.values()]


def _explanation(group: Sequence[Short]) -> Explanation:
    least = group[0]
    facts = {"host": least.host, "worker": least.worker, "of": least.of}
    facts |= {"free": str(least.free // _MB), "limit": str(least.limit // _MB)}
    if least.resource == "descriptors":
        facts |= {"free": str(least.limit - least.free), "limit": str(least.limit)}
    evidence: dict[str, JSON] = {
        "host": least.host,
        "resource": least.resource,
        "free": least.free,
        "limit": least.limit,
        "of": least.of,
        "worker_names": [one.worker for one in group[:NAMED]],
    }
    return Explanation("host_exhausted", _text(least) % facts, evidence, _step(least.resource))


def _text(least: Short) -> str:
    if least.resource == "memory" and least.of == "cgroup":
        return gettext(
            "Host %(host)s is short of memory: %(free)s of the %(limit)s MB that the control group (container) of "
            "worker %(worker)s may use are free. The kernel may kill processes, and jobs may fail."
        )
    if least.resource == "memory":
        return gettext(
            "Host %(host)s of worker %(worker)s is short of memory: %(free)s of %(limit)s MB are free. The kernel may "
            "kill processes, and jobs may fail."
        )
    if least.resource == "disk":
        return gettext(
            "Host %(host)s of worker %(worker)s is short of disk space: %(free)s of %(limit)s MB are free where %(of)s "
            "is. Jobs that write files fail."
        )
    if least.of == "host":
        return gettext(
            "Host %(host)s of worker %(worker)s is short of file descriptors: all its processes together have "
            "%(free)s of %(limit)s open. No process can open files or connections soon."
        )
    return gettext(
        "Worker %(worker)s on host %(host)s is short of file descriptors: it has %(free)s of %(limit)s open. Soon it "
        "can open no files and no connections, and its jobs fail."
    )


def _step(resource: str) -> str:
    if resource == "memory":
        return gettext(
            "Give the host or the container more memory, or use less: fewer --processes or --concurrency, or "
            "--max-rss, which replaces processes that grow."
        )
    if resource == "disk":
        return gettext("Delete files there, or make the disk larger.")
    return gettext(
        "Find out which jobs leave files or sockets open (ls -l /proc/PID/fd). Restart the worker, and raise the limit "
        "(ulimit -n, or LimitNOFILE of systemd) if the jobs need so many."
    )
