"""What a process of the package remembers: forgotten before each test, so that no test depends on those before it."""

import logging

from django.core.cache import cache

from jobqueue import backends, wakeup
from jobqueue.cli.process import LogHandler
from jobqueue.conf import known_tasks
from jobqueue.gates import declared, waiting
from jobqueue.gates import rules as gate_rules
from jobqueue.locks import lock, redis
from jobqueue.lockstats import recorder
from jobqueue.maintenance import cleaner, lock_watch
from jobqueue.otel import JobQueueInstrumentor
from jobqueue.producer import back_pressure
from jobqueue.schedules import declaring
from jobqueue.stats import recorder as job_stats
from jobqueue.tasks import registry, versions
from jobqueue.transitions.claiming import candidates
from jobqueue.wakeup.notifiers import RedisNotifier
from jobqueue.worker.child import outcomes

MEMORIES = (
    backends._shared,
    waiting.unclaimed,
    candidates._next_aged_look,
    back_pressure._backlogs._known,
    declared._met,
    cleaner._positions,
    lock_watch._memories,
    outcomes._without_lock,
    redis._strays,
    lock._warned,
    wakeup._notified_at,
)
REGISTRIES = (
    (known_tasks, "_tasks"),
    (known_tasks, "_specs"),
    (known_tasks, "_aliases"),
    (known_tasks, "_having"),
    (registry, "_handlers"),
    (versions, "_upcasters"),
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
    # What pages of the admin keep for a few seconds.
    cache.clear()
    for memory in MEMORIES:
        memory.clear()
    JobQueueInstrumentor().uninstrument()
    # Tasks with limits of other apps, which a test has discovered: claims would check jobs of all queues for them.
    limited = {*declared.tasks(), *known_tasks.having("dependency")}
    forget_tasks(path for path in limited if not path.startswith("tests.app."))
    gate_rules._cache.forget()
    recorder._reset()
    job_stats._reset()
    RedisNotifier.at.cache_clear()


def forget_tasks(paths):
    """Be a process that has not imported these tasks."""
    for path in paths:
        known_tasks._tasks.pop(path, None)
        known_tasks._specs.pop(path, None)
    known_tasks._having.clear()


def know_no_tasks(monkeypatch):
    """Be a process that has imported no tasks."""
    for name in ("_tasks", "_specs", "_aliases", "_having"):
        monkeypatch.setattr(known_tasks, name, {})


def copy_registries(monkeypatch):
    """Let what a test registers be gone after it."""
    for owner, name in REGISTRIES:
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))
