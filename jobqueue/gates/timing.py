"""Opens gates at their time: buckets that have a token again, pauses that end, and gates whose limit was changed.

And notices what operators and circuit breakers have changed, so that what opens again starts at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, TypeVar

from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q, QuerySet

from jobqueue.conf import load
from jobqueue.conf.known_tasks import names_of, path_of
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.gates.backlog import INDEX
from jobqueue.gates.breaker import breaker_of, probe_runs
from jobqueue.gates.buckets import draw, mend
from jobqueue.gates.limits import (
    PAUSED,
    breaker_subject,
    dependency_named,
    limited_queues,
    limits_at,
    rate_subject,
    slot_subject,
)
from jobqueue.gates.locking import free_of, read_all, update_unlocked
from jobqueue.gates.rules import NO_RULE, NO_RULES, Rule, Rules, forget_rules, rules
from jobqueue.gates.waiting import (
    CHUNK,
    FLOW_GATE,
    look_soon,
    open_first,
    open_free,
    open_jobs,
    subjects_waiting,
    unclaimed,
)
from jobqueue.models import FlowRule, Gate, GateWait, Job

#: rules that let nothing start as a pause does
LIMIT_OF_0 = Q(sets_concurrency=True, concurrency=0) | Q(sets_rate=True, rate="0")
#: gates are opened at most this often, so that a fast rate opens several jobs at once
TICK_SECONDS = 0.05
#: between two looks whether jobs that were opened for all tokens of a bucket have started
UNCLAIMED_SECONDS = 1.0
#: how the wait_reason of a job that waits for a token begins
RATE = "rate "
#: jobs that are opened at once behind a gate whose limit is not known
SOME = 200
#: so often SOME jobs are looked at for one that may be the probe, before other gates have their turn
PROBE_PASSES_MAX = 10
#: between two looks whether the probe of a breaker still runs, or was started
PROBE_LOOK_SECONDS = 1.0
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
    if gate.most is not None:
        opened, again = open_free([gate.pk], using=using), None
    elif gate.per_second is not None:
        opened, again = _open_paced(gate, using)
    elif (dependency := dependency_named(gate.wait_reason)) is not None:
        opened, again = _open_behind_breaker(gate, dependency, using)
    else:
        opened, again = _open_unless_paused(gate, using)
    # Only if no claim has put another job there meanwhile: the time that it has set may be the same.
    mine = Gate.objects.using(using).filter(pk=gate.pk, opens_at=gate.opens_at, updated_at=gate.updated_at)
    update_unlocked(mine, using, opens_at=again)
    return opened


def _open_unless_paused(gate: Gate, using: str) -> tuple[int, datetime | None]:
    """All of them, after a pause has ended or a limit was taken away."""
    if gate.wait_reason.startswith(PAUSED) and gate.queue is not None and gate.task is not None:
        rows = FlowRule.objects.using(using).filter(queue=gate.queue, task__in=names_of(gate.task))
        paused = Q(mode=FlowRule.Mode.PAUSED) & (Q(until=None) | Q(until__gt=UtcNow()))
        shut = rows.filter(paused | LIMIT_OF_0)
        if stops := read_all(shut, using):
            # One that is paused by a limit too has no time; a change of the limit sets one.
            return 0, None if any(rule.mode != FlowRule.Mode.PAUSED for rule in stops) else stops[0].until
        return _open_all(gate, using)
    return _open_relimited(gate, using)


def _open_relimited(gate: Gate, using: str) -> tuple[int, datetime | None]:
    """As many as the limit allows that an operator has set; some if it is that of the task: claims write it here."""
    if gate.queue is None or gate.task is None:
        return _open_all(gate, using)
    rule, paced = rules(using).of_task(gate.queue, gate.task), gate.wait_reason.startswith(RATE)
    if rule.starts_nothing:
        # Behind the gate of a key jobs of other tasks may wait, too.
        own = {slot_subject(gate.queue, gate.task).number, rate_subject(gate.queue, gate.task).number}
        return (0, None) if gate.pk in own else _open_all(gate, using, SOME)
    values: dict[str, float | None] = {}
    if paced and rule.sets_rate:
        values = {"per_second": rule.per_second}
    elif not paced and rule.sets_concurrency:
        values = {"most": rule.concurrency}
    limit = next(iter(values.values()), None)
    if limit is None:
        return _open_all(gate, using, SOME)
    # Only if no claim has written another one meanwhile.
    rows = Gate.objects.using(using).filter(pk=gate.pk, most=None, per_second=None)
    update_unlocked(rows, using, **values)
    if not paced:
        return open_free([gate.pk], using=using), None
    gate.per_second = limit
    return _open_paced(gate, using)


def _open_all(gate: Gate, using: str, most: int = CHUNK) -> tuple[int, datetime | None]:
    opened = open_first({gate.pk: most}, using=using)
    return opened, gate.now if opened else None  # type: ignore[attr-defined]


def _open_behind_breaker(gate: Gate, dependency: str, using: str) -> tuple[int, datetime | None]:
    """All of them if it is closed; one, which may be the probe, if it is time for that."""
    now: datetime = gate.now  # type: ignore[attr-defined]
    breaker = retry_transient("promote", partial(breaker_of, dependency, using), using=using)
    if breaker is None:
        return _open_all(gate, using)
    if breaker.looks_again_at is None and breaker.by_hand:
        return 0, None
    if breaker.looks_again_at is not None and breaker.looks_again_at > now:
        return 0, breaker.looks_again_at
    if breaker.probe is not None and retry_transient("promote", partial(probe_runs, breaker, using), using=using):
        return 0, now + timedelta(seconds=PROBE_LOOK_SECONDS)
    # Perhaps no worker serves its queue: then the next one has its turn.
    opened, left = _open_probe(gate.pk, using)
    if left is _Look.AT_ONCE:
        return opened, now
    return opened, None if left is _Look.NOBODY_WAITS else now + timedelta(seconds=PROBE_LOOK_SECONDS)


class _Look(Enum):
    """What is left to do after a look for a probe."""

    AT_ONCE = auto()
    LATER = auto()
    NOBODY_WAITS = auto()


#: by database and gate, how far a look for a probe came that did not come to an end
_looked: dict[tuple[str, int], GateWait] = {}


def _open_probe(subject: int, using: str) -> tuple[int, _Look]:
    """Open the first job that may be the probe, and those before it that have expired, which the next claim ends.

    Those of paused queues and tasks stay, and those whose rows others have locked.
    """
    known, after, opened = rules(using), _looked.pop((using, subject), None), 0
    first = after is None
    for _ in range(PROBE_PASSES_MAX):
        waits = read_all(_behind(subject, after, using), using)
        found = _facts([wait.job_id for wait in waits], using)
        # One that is gone is opened too, which deletes its row.
        late = [wait.job_id for wait in waits if found.get(wait.job_id, _GONE).has_expired]
        opened += len(open_jobs(late, using))
        for wait in waits:
            one = found.get(wait.job_id, _GONE)
            if one.has_expired or limits_at(one.queue, known).paused:
                continue
            if not known.of_task(one.queue, one.task).starts_nothing and open_jobs([wait.job_id], using):
                return opened + 1, _Look.LATER
        if len(waits) < SOME:
            return opened, _Look.NOBODY_WAITS if first and not waits else _Look.LATER
        first, after = False, waits[-1]
    _looked[using, subject] = waits[-1]
    return opened, _Look.AT_ONCE


class _Facts(NamedTuple):
    """What a job that waits for a breaker has, as far as it matters for a probe."""

    queue: str
    task: str | None
    has_expired: bool


_GONE = _Facts("", None, has_expired=True)


def _facts(ids: Sequence[int], using: str) -> dict[int, _Facts]:
    rows = Job.objects.using(using).filter(pk__in=ids)
    has_expired = ExpressionWrapper(Q(expires_at__isnull=False) & Q(expires_at__lte=UtcNow()), BooleanField())
    found = rows.annotate(has_expired=has_expired).values_list("pk", "queue", "task", "has_expired")
    return {job_id: _Facts(queue, task, bool(late)) for job_id, queue, task, late in read_all(found, using)}


def _behind(subject: int, after: GateWait | None, using: str) -> QuerySet[GateWait]:
    """The first SOME that wait for a subject, behind this one."""
    rows = GateWait.objects.using(using).filter(subject=subject)
    if after is not None:
        equal = Q(urgency=after.urgency)
        later = Q(run_at__gt=after.run_at) | Q(run_at=after.run_at, job_id__gt=after.job_id)
        rows = rows.filter(Q(urgency__gt=after.urgency) | equal & later)
    return rows.order_by("subject", "urgency", "run_at", "job_id")[:SOME]


def _open_paced(gate: Gate, using: str) -> tuple[int, datetime | None]:
    """As many as there are tokens for, besides those that are open already: no claim may have met them."""
    now, per_second = gate.now, gate.per_second or 0.0  # type: ignore[attr-defined]
    retry_transient("promote", partial(mend, gate, per_second, using), using=using)
    _, drawn = draw(gate.used_until, now, per_second, CHUNK)
    if drawn.opens_at is None:
        return 0, None
    wanted = drawn.tokens - (unclaimed.open_still([gate.pk], using).get(gate.pk, 0) if drawn.tokens else 0)
    if wanted <= 0:
        # The claim that draws the next token sets the time of the one after it.
        return 0, max(drawn.opens_at, now + timedelta(seconds=UNCLAIMED_SECONDS if drawn.tokens else TICK_SECONDS))
    opened = open_first({gate.pk: wanted}, using=using)
    if opened < wanted:
        # Nobody waits any more.
        return opened, None
    return opened, max(drawn.opens_at, now + timedelta(seconds=TICK_SECONDS))


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
