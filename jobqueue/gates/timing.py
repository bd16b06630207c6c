"""Opens gates at their time, each as its kind says: kinds.py.

And notices what operators and circuit breakers have changed, so that what opens again starts at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from django.db.models import Exists, OuterRef, Q

from jobqueue.conf import load
from jobqueue.conf.known_tasks import names_of, path_of
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.gates.backlog import INDEX
from jobqueue.gates.kinds import open_gate
from jobqueue.gates.limits import breaker_subject, limited_queues, limits_at, rate_subject, slot_subject
from jobqueue.gates.locking import free_of, read_all, update_unlocked
from jobqueue.gates.rules import NO_RULE, NO_RULES, Rule, Rules, forget_rules, rules
from jobqueue.gates.waiting import CHUNK, FLOW_GATE, look_soon, subjects_waiting
from jobqueue.models import Gate, GateWait, Job

#: jobs that wait in a queue of which it is looked for keys that tasks share, when the limits of one of them change
SHARED = 10_000
#: a claim may go by the rules of before a change, and close again what was opened: so long after it, gates are looked
#: at again
AGAIN_SECONDS = (0.15, 0.75)
_K = TypeVar("_K")


def open_soon(queue: str, task: str, *, using: str, relimited: bool = False) -> None:
    """Let workers look again at all gates of a task, in the caller's transaction. `relimited`: its limits changed."""
    path = path_of(task)
    gates = Gate.objects.using(using).filter(queue=queue, task=path)
    if not relimited:
        update_unlocked(gates, using, opens_at=UtcNow(), updated_at=UtcNow())
        return
    # Claims check again what is opened too early, and write the new limits.
    anew: dict[str, object] = {"most": None, "per_second": None, "opens_at": UtcNow(), "updated_at": UtcNow()}
    update_unlocked(gates, using, **anew)
    shared = _keys_with_jobs_of(queue, path, using)
    for start in range(0, len(shared), CHUNK):
        # The row names the task of the job that was last put there.
        others = Gate.objects.using(using).filter(pk__in=shared[start : start + CHUNK], queue=queue)
        update_unlocked(others.exclude(task=path), using, task=path, **anew)


def _keys_with_jobs_of(queue: str, path: str, using: str) -> list[int]:
    """The slots and rates of keys behind which jobs of a task are among the first SHARED that wait in its queue.

    The sweep comes to the others.
    """
    rows = Job.objects.using(using).filter(queue=queue, status=Job.Status.READY, gate=FLOW_GATE)
    first = vendor(using).force_index(rows.order_by("priority", "run_at", "id"), INDEX)
    names, keys = {*names_of(path)}, set[bytes]()
    for task, key in first.values_list("task", "concurrency_key")[:SHARED]:
        if key is not None and task in names:
            keys.add(bytes(key))
    found = ((slot_subject(queue, path, key), rate_subject(queue, path, key)) for key in sorted(keys))
    return [subject.number for both in found for subject in both]


def any_waits(using: str) -> bool:
    """Whether any job waits at a gate, with a time or without."""
    # The last ones first: where many have been opened lately, a database may pass over their rows for long.
    last = GateWait.objects.using(using).order_by("-pk").values_list("pk")
    return retry_transient("promote", lambda: bool(last[:1]), using=using)


def any_limited(serves: Callable[[str], bool], using: str) -> bool:
    """Whether due jobs of queues that `serves` names wait for a slot or a token, so that they start soon.

    Not those of paused tasks and queues, nor of a limit of 0, nor behind a breaker: nobody knows when these start.
    """
    known, after = rules(using), -1
    if any(serves(queue) and _any_due(queue, using) for queue in limited_queues(known)):
        return True
    while subjects := retry_transient("promote", partial(subjects_waiting, after, CHUNK, using), using=using):
        after = subjects[-1]
        due = GateWait.objects.using(using).filter(subject=OuterRef("pk"), run_at__lte=UtcNow())
        gates = Gate.objects.using(using).filter(pk__in=subjects, queue__isnull=False, task__isnull=False)
        rows = gates.filter(Exists(due)).values_list("queue", "task")
        found = {*read_all(rows, using)}
        started = (place for place in found if not known.of_task(*place).starts_nothing)
        if any(serves(queue) and not limits_at(queue, known).paused for queue, _ in started):
            return True
    return False


def _any_due(queue: str, using: str) -> bool:
    """Whether a job of `queue` is due that waits for nothing but its queue."""
    due = Job.objects.using(using).filter(queue=queue, status=Job.Status.READY, gate=0, run_at__lte=UtcNow())
    return retry_transient("claim", lambda: bool(due.values_list("pk")[:1]), using=using)


def any_timed(using: str) -> bool:
    """Whether any gate opens at some time: one seek."""
    timed = Gate.objects.using(using).filter(opens_at__isnull=False)
    return retry_transient("promote", lambda: bool(timed.values_list("pk")[:1]), using=using)


def open_due(*, using: str, before: Callable[[], None] | None = None) -> int:
    """Open the gates whose time has come, up to CHUNK jobs of each; how many jobs were opened. One seek if none is.

    `before` is called first if any time has come.
    """
    gates = _due_and_free(using)
    if gates and before is not None:
        before()
    return sum(_open(gate, using) for gate in gates)


def _due_and_free(using: str) -> list[Gate]:
    """Gates whose time has come, longest first: about CHUNK of them.

    One that others have locked is looked at when they have written what they know: those behind it do not wait.
    """
    due = Gate.objects.using(using).filter(opens_at__lte=UtcNow()).annotate(now=Selected(UtcNow()))
    rows = due = due.order_by("opens_at", "pk")
    found: list[Gate] = []
    while len(found) < CHUNK:
        page = read_all(rows[:CHUNK], using)
        free = free_of([gate.pk for gate in page], using)
        found += [gate for gate in page if gate.pk in free]
        if len(page) < CHUNK:
            break
        at, subject = page[-1].opens_at, page[-1].pk
        rows = due.filter(Q(opens_at__gt=at) | Q(opens_at=at, pk__gt=subject))
    return found


def _open(gate: Gate, using: str) -> int:
    opened, again = open_gate(gate, using)
    # Only if no claim has put another job there meanwhile: the time that it has set may be the same.
    mine = Gate.objects.using(using).filter(pk=gate.pk, opens_at=gate.opens_at, updated_at=gate.updated_at)
    update_unlocked(mine, using, opens_at=again)
    return opened


class _Change(NamedTuple):
    """A task in a queue whose rule is another one now; or a dependency whose breaker is, with the queue ""."""

    queue: str
    name: str
    relimited: bool = False


class Changes:
    """The rules of a database as they were at the last look, and the gates that are to be looked at again."""

    def __init__(self, using: str) -> None:
        self._using = using
        # All that is set counts as changed at the first look: it may have been set a moment ago.
        self._known = NO_RULES
        self._again: list[tuple[float, _Change]] = []

    def look(self) -> bool:
        """Read the rules; whether they are others than at the last look."""
        forget_rules()
        known = rules(self._using)
        before, self._known = self._known, known
        found = [
            _Change(*place, _limits(before.of_task(*place)) != _limits(known.of_task(*place)))
            for place in _differing(before.tasks, known.tasks)
        ]
        found += [_Change("", dependency) for dependency in _differing(before.breakers, known.breakers)]
        now = time.monotonic()
        self._again += [(now + seconds, change) for seconds in AGAIN_SECONDS for change in found]
        return bool(found) or before.queues != known.queues

    def open_again(self) -> None:
        """Let gates be looked at again which a claim may have closed by the rules of before a change."""
        now = time.monotonic()
        due = {change for at, change in self._again if at <= now}
        for queue, name, relimited in sorted(due):
            if queue:
                look = partial(open_soon, queue, name, using=self._using, relimited=relimited)
            else:
                look = partial(look_soon, [breaker_subject(name).number], self._using)
            retry_transient("promote", look, using=self._using)
        self._again = [(at, change) for at, change in self._again if at > now]


def any_in_effect(known: Rules) -> bool:
    """Whether anything is paused or limited by operators or settings, or a breaker is not closed."""
    return (
        bool(known.breakers)
        or any(rule != NO_RULE for rule in [*known.queues.values(), *known.tasks.values()])
        or any(own.concurrency is not None or own.rate is not None for own in load().queues.values())
    )


def _differing(before: Mapping[_K, object], now: Mapping[_K, object]) -> list[_K]:
    return [key for key in {**before, **now} if before.get(key) != now.get(key)]


def _limits(rule: Rule) -> tuple[object, ...]:
    return rule.sets_concurrency, rule.concurrency, rule.sets_rate, rule.per_second
