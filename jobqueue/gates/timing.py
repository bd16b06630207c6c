"""Opens gates at their time: buckets that have a token again, pauses that end, and gates whose limit was changed."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from jobqueue.db.clock import Selected, UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.gates import declared
from jobqueue.gates.breaker import breaker_of, probe_runs
from jobqueue.gates.buckets import draw, mend
from jobqueue.gates.opening import CHUNK, open_first, open_free
from jobqueue.gates.subjects import PAUSED, dependency_named
from jobqueue.models import FlowRule, Gate

#: gates are opened at most this often, so that a fast rate opens several jobs at once
TICK_SECONDS = 0.05
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


def any_timed(using: str) -> bool:
    """Whether any gate opens at some time: one seek."""
    timed = Gate.objects.using(using).filter(opens_at__isnull=False)
    return retry_transient("promote", lambda: bool(timed.values_list("pk")[:1]), using=using)


def open_due(*, using: str) -> int:
    """Open the gates whose time has come, up to CHUNK jobs of each; how many jobs were opened. One seek if none is."""
    due = Gate.objects.using(using).filter(opens_at__lte=UtcNow()).order_by("opens_at").annotate(now=Selected(UtcNow()))
    gates: list[Gate] = retry_transient("promote", partial(list, due[:CHUNK]), using=using)
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
    # Only if no claim has set another time meanwhile.
    mine = Gate.objects.using(using).filter(pk=gate.pk, opens_at=gate.opens_at)
    retry_transient("promote", partial(mine.update, opens_at=again), using=using)
    return opened


def _open_unless_paused(gate: Gate, using: str) -> tuple[int, datetime | None]:
    """All of them, after a pause has ended or a limit was taken away."""
    if gate.wait_reason.startswith(PAUSED) and gate.queue is not None and gate.task is not None:
        rows = FlowRule.objects.using(using).filter(queue=gate.queue, task=gate.task, mode=FlowRule.Mode.PAUSED)
        rule = retry_transient("promote", rows.exclude(until__lte=UtcNow()).first, using=using)
        if rule is not None:
            return 0, rule.until
    return _open_all(gate, using)


def _open_all(gate: Gate, using: str) -> tuple[int, datetime | None]:
    opened = open_first({gate.pk: CHUNK}, using=using)
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
    now = gate.now  # type: ignore[attr-defined]
    retry_transient("promote", partial(mend, gate, gate.per_second or 0.0, using), using=using)
    _, drawn = draw(gate.used_until, now, gate.per_second or 0.0, CHUNK)
    if drawn.opens_at is None:
        return 0, None
    opened = open_first({gate.pk: drawn.tokens}, using=using) if drawn.tokens else 0
    if opened < drawn.tokens:
        # Nobody waits any more.
        return opened, None
    return opened, max(drawn.opens_at, now + timedelta(seconds=TICK_SECONDS))
