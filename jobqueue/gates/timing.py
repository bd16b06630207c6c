"""Opens gates at their time: buckets that have a token again, pauses that end, and gates whose limit was changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Q

from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.gates import declared
from jobqueue.gates.ahead import opened as ahead
from jobqueue.gates.breaker import breaker_of, probe_runs
from jobqueue.gates.buckets import draw, mend
from jobqueue.gates.opening import CHUNK, open_first, open_free
from jobqueue.gates.rules import rules as current_rules
from jobqueue.gates.subjects import PAUSED, breaker_subject, dependency_named, rate_subject, slot_subject
from jobqueue.models import FlowRule, Gate, GateWait

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
#: between two looks whether the probe of a breaker still runs, or was started
PROBE_LOOK_SECONDS = 1.0


def open_soon(queue: str, task: str, *, using: str, relimited: bool = False) -> None:
    """Let workers look again at all gates of a task, in the caller's transaction. `relimited`: its limits changed."""
    gates = Gate.objects.using(using).filter(queue=queue, task=declared.path_of(task))
    if relimited:
        # Claims check again what is opened too early, and write the new limits.
        gates.update(most=None, per_second=None, opens_at=UtcNow(), updated_at=UtcNow())
    else:
        gates.update(opens_at=UtcNow(), updated_at=UtcNow())


def look_at_breaker(dependency: str, *, using: str) -> None:
    """Let workers look again at the gate of a dependency."""
    rows = Gate.objects.using(using).filter(pk=breaker_subject(dependency).number)
    rows.update(opens_at=UtcNow(), updated_at=UtcNow())


def any_waits(using: str) -> bool:
    """Whether any job waits at a gate, with a time or without."""
    # The last ones first: where many have been opened lately, a database may pass over their rows for long.
    last = GateWait.objects.using(using).order_by("-pk").values_list("pk")
    return retry_transient("promote", lambda: bool(last[:1]), using=using)


def any_timed(using: str) -> bool:
    """Whether any gate opens at some time: one seek."""
    timed = Gate.objects.using(using).filter(opens_at__isnull=False)
    return retry_transient("promote", lambda: bool(timed.values_list("pk")[:1]), using=using)


def open_due(*, using: str, before: Callable[[], None] | None = None) -> int:
    """Open the gates whose time has come, up to CHUNK jobs of each; how many jobs were opened. One seek if none is.

    `before` is called first if any time has come.
    """
    due = Gate.objects.using(using).filter(opens_at__lte=UtcNow()).order_by("opens_at").annotate(now=Selected(UtcNow()))
    gates: list[Gate] = retry_transient("promote", partial(list, due[:CHUNK]), using=using)
    if gates and before is not None:
        before()
    return sum(_open(gate, using) for gate in gates)


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
    retry_transient("promote", partial(mine.update, opens_at=again), using=using)
    return opened


def _open_unless_paused(gate: Gate, using: str) -> tuple[int, datetime | None]:
    """All of them, after a pause has ended or a limit was taken away."""
    if gate.wait_reason.startswith(PAUSED) and gate.queue is not None and gate.task is not None:
        rows = FlowRule.objects.using(using).filter(queue=gate.queue, task__in=declared.names_of(gate.task))
        paused = Q(mode=FlowRule.Mode.PAUSED) & (Q(until=None) | Q(until__gt=UtcNow()))
        shut = rows.filter(paused | LIMIT_OF_0)
        rules: list[FlowRule] = retry_transient("promote", partial(list, shut), using=using)
        if rules:
            # One that is paused by a limit too has no time; a change of the limit sets one.
            return 0, None if any(rule.mode != FlowRule.Mode.PAUSED for rule in rules) else rules[0].until
        return _open_all(gate, using)
    return _open_relimited(gate, using)


def _open_relimited(gate: Gate, using: str) -> tuple[int, datetime | None]:
    """As many as the limit allows that an operator has set; some if it is that of the task: claims write it here."""
    if gate.queue is None or gate.task is None:
        return _open_all(gate, using)
    rule, paced = current_rules(using).of_task(gate.queue, gate.task), gate.wait_reason.startswith(RATE)
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
    retry_transient("promote", partial(rows.update, **values), using=using)
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
    look = partial(breaker_of, dependency, using)
    breaker = retry_transient("promote", look, using=using)
    if breaker is None:
        return _open_all(gate, using)
    if breaker.looks_again_at is None and breaker.by_hand:
        return 0, None
    if breaker.looks_again_at is not None and breaker.looks_again_at > now:
        return 0, breaker.looks_again_at
    if breaker.probe is not None and retry_transient("promote", partial(probe_runs, breaker, using), using=using):
        return 0, now + timedelta(seconds=PROBE_LOOK_SECONDS)
    # Perhaps no worker serves its queue: then the next one has its turn.
    opened = open_first({gate.pk: 1}, using=using)
    return opened, now + timedelta(seconds=PROBE_LOOK_SECONDS) if opened else None


def _open_paced(gate: Gate, using: str) -> tuple[int, datetime | None]:
    """As many as there are tokens for, besides those that are open already: no claim may have met them."""
    now, per_second = gate.now, gate.per_second or 0.0  # type: ignore[attr-defined]
    retry_transient("promote", partial(mend, gate, per_second, using), using=using)
    _, drawn = draw(gate.used_until, now, per_second, CHUNK)
    if drawn.opens_at is None:
        return 0, None
    wanted = drawn.tokens - (ahead.open_still([gate.pk], using).get(gate.pk, 0) if drawn.tokens else 0)
    if wanted <= 0:
        # The claim that draws the next token sets the time of the one after it.
        return 0, max(drawn.opens_at, now + timedelta(seconds=UNCLAIMED_SECONDS if drawn.tokens else TICK_SECONDS))
    opened = open_first({gate.pk: wanted}, using=using)
    if opened < wanted:
        # Nobody waits any more.
        return opened, None
    return opened, max(drawn.opens_at, now + timedelta(seconds=TICK_SECONDS))
