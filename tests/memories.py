"""What a process of the package remembers: forgotten before each test, so that no test depends on those before it."""

import logging

from jobqueue import wakeup
from jobqueue.cli.process import LogHandler
from jobqueue.conf import result_ttl
from jobqueue.failures import crash_policies, project
from jobqueue.gates import declared, opening
from jobqueue.gates import rules as gate_rules
from jobqueue.locks import lock, redis
from jobqueue.lockstats import recorder
from jobqueue.maintenance import lock_sweeper, lock_watch
from jobqueue.otel import JobQueueInstrumentor
from jobqueue.producer import back_pressure
from jobqueue.schedules import declaring
from jobqueue.stats import recorder as job_stats
from jobqueue.tasks import registry, versions
from jobqueue.transitions.claiming import aging
from jobqueue.wakeup.redis import RedisNotifier
from jobqueue.worker.child import parked

MEMORIES = (
    opening.unclaimed,
    aging._next_look,
    back_pressure._backlogs._known,
    declared._met,
    lock_sweeper._positions,
    lock_watch._memories,
    parked._parked,
    redis._strays,
    lock._warned,
    wakeup._notified_at,
)
REGISTRIES = (
    (registry, "_tasks"),
    (registry, "_aliases"),
    (registry, "_handlers"),
    (versions, "_upcasters"),
    (project, "_of_tasks"),
    (crash_policies, "_of_tasks"),
    (declared, "_declared"),
    (declared, "_dependencies"),
    (declared, "_paths"),
    (result_ttl, "_declared"),
    (declaring, "_declared"),
)


def reset():
    """Be a process that has just begun."""
    # A command that a test has called leaves a handler whose stream ends with the test.
    for name in ("jobqueue", "django.dispatch"):
        logger = logging.getLogger(name)
        for handler in [one for one in logger.handlers if isinstance(one, LogHandler)]:
            logger.removeHandler(handler)
            logger.propagate = True
    for memory in MEMORIES:
        memory.clear()
    JobQueueInstrumentor().uninstrument()
    # Limits of other apps, whose tasks a test has discovered: claims would check jobs of all queues for them.
    for known in (declared._declared, declared._dependencies):
        for path in [path for path in known if not path.startswith("tests.app.")]:
            del known[path]
    gate_rules._cache.forget()
    recorder._reset()
    job_stats._reset()
    RedisNotifier.at.cache_clear()


def copy_registries(monkeypatch):
    """Let what a test registers be gone after it."""
    for owner, name in REGISTRIES:
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))
