"""The kinds of limits: what jobs wait for behind a gate besides their key, a row of KINDS for each.

A claim asks the kinds that stop a job in their order, and then counts slots and tokens: admit.py. Whoever opens a gate
does it by the row of its wait_reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Protocol

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from jobqueue.conf.known_tasks import names_of, path_of
from jobqueue.db.clock import UtcNow
from jobqueue.db.retry import retry_transient
from jobqueue.gates import declared
from jobqueue.gates.breaker import breaker_of, may_probe, probe_runs
from jobqueue.gates.buckets import draw, mend
from jobqueue.gates.limits import (
    BREAKER,
    KEY,
    PAUSED,
    RATE,
    SLOT,
    Subject,
    breaker_subject,
    dependency_named,
    limits_at,
    pause_subject,
    rate_subject,
    slot_subject,
)
from jobqueue.gates.locking import read_all, update_unlocked
from jobqueue.gates.rules import OpenBreaker, Rules, rules
from jobqueue.gates.waiting import CHUNK, open_first, open_free, open_jobs, unclaimed
from jobqueue.models import FlowRule, Gate, GateWait, Job

#: rules that let nothing start as a pause does
LIMIT_OF_0 = Q(sets_concurrency=True, concurrency=0) | Q(sets_rate=True, rate="0")
#: gates are opened at most this often, so that a fast rate opens several jobs at once
TICK_SECONDS = 0.05
#: between two looks whether jobs that were opened for all tokens of a bucket have started
UNCLAIMED_SECONDS = 1.0
#: jobs that are opened at once behind a gate whose limit is not known
SOME = 200
#: so often SOME jobs are looked at for one that may be the probe, before other gates have their turn
PROBE_PASSES_MAX = 10
#: between two looks whether the probe of a breaker still runs, or was started
PROBE_LOOK_SECONDS = 1.0

#: how many jobs were opened behind a gate, and when it is to be looked at again; None: an event will say so
Opened = tuple[int, datetime | None]


class Candidate(declared.Needing, Protocol):
    """A job as a claim has read it, before it raises the fence."""

    @property
    def pk(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def due_at(self) -> datetime: ...
    @property
    def concurrency_key(self) -> bytes | None: ...
    @property
    def now(self) -> datetime: ...


@dataclass(slots=True)
class Asking:
    """What a claim goes by when it asks whether a job may start, in its open transaction."""

    queue: str
    known: Rules
    using: str
    may_ask: bool = True  # False: it may not be reached, and would be a probe that does not start
    probed: set[str] = field(default_factory=set)  # dependencies whose breaker was asked for a probe


class Stop(NamedTuple):
    """The gate behind which a job waits, and until when, if that is known. Without `subject` it is passed over."""

    subject: Subject | None
    until: datetime | None = None
    task: str | None = None  # the task whose jobs wait there; None: jobs of any queue and task do


class AtGate(Protocol):
    """A job that waits behind a gate."""

    @property
    def queue(self) -> str: ...
    @property
    def task(self) -> str | None: ...
    @property
    def concurrency_key(self) -> bytes | None: ...
    @property
    def wait_reason(self) -> str | None: ...


def _paused(row: Candidate, asking: Asking) -> Stop | None:
    """Stop a job whose task is paused, or has a limit of 0."""
    rule = asking.known.of_task(asking.queue, row.task)
    if row.task is None or not rule.starts_nothing:
        return None
    return Stop(pause_subject(asking.queue, row.task), rule.until, path_of(row.task))


def _open_unless_paused(gate: Gate, using: str) -> Opened:
    """All of them, after a pause has ended or a limit of 0 was taken away."""
    if gate.queue is None or gate.task is None:
        return _open_all(gate, using)
    rows = FlowRule.objects.using(using).filter(queue=gate.queue, task__in=names_of(gate.task))
    paused = Q(mode=FlowRule.Mode.PAUSED) & (Q(until=None) | Q(until__gt=UtcNow()))
    if stops := read_all(rows.filter(paused | LIMIT_OF_0), using):
        # One that is paused by a limit too has no time; a change of the limit sets one.
        return 0, None if any(rule.mode != FlowRule.Mode.PAUSED for rule in stops) else stops[0].until
    return _open_all(gate, using)


def _breaker_of(job: AtGate) -> Subject:
    return breaker_subject(dependency_named(job.wait_reason or "") or "")


def _not_closed(row: Candidate, asking: Asking) -> Stop | None:
    """Stop a job whose dependency has a breaker that is not closed, unless the job becomes its probe."""
    dependency = declared.needed_by(row)
    breaker = asking.known.breakers.get(dependency) if dependency is not None else None
    if breaker is None or dependency is None:
        return None
    if _is_time_for_probe(row, dependency, breaker, asking):
        if not asking.may_ask:
            return Stop(None)
        asking.probed.add(dependency)
        if may_probe(dependency, row.pk, row.fence + 1, using=asking.using):
            return None
    return Stop(breaker_subject(dependency), breaker.looks_again_at)


def _is_time_for_probe(row: Candidate, dependency: str, breaker: OpenBreaker, asking: Asking) -> bool:
    """Whether a job may ask to start as the probe of an open breaker. Only one of a claim asks."""
    is_early = breaker.probe_at is not None and breaker.probe_at > row.now
    return not (breaker.by_hand or dependency in asking.probed or is_early)


def _open_behind_breaker(gate: Gate, using: str) -> Opened:
    """All of them if it is closed; one, which may be the probe, if it is time for that."""
    now: datetime = gate.now  # type: ignore[attr-defined]
    dependency = dependency_named(gate.wait_reason) or ""
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


def _open_slots(gate: Gate, using: str) -> Opened:
    """As many as there are free slots."""
    if gate.most is None and (opened := _open_relimited(gate, "most", using)) is not None:
        return opened
    return open_free([gate.pk], using=using), None


def _open_paced(gate: Gate, using: str) -> Opened:
    """As many as there are tokens for, besides those that are open already: no claim may have met them."""
    if gate.per_second is None and (opened := _open_relimited(gate, "per_second", using)) is not None:
        return opened
    now, per_second = gate.now, gate.per_second or 0.0  # type: ignore[attr-defined]
    retry_transient("promote", partial(mend, gate, per_second, using), using=using)
    _, drawn = draw(gate.used_until, now, per_second, CHUNK)
    if drawn.opens_at is None:
        return 0, None
    wanted = drawn.tokens - (unclaimed.open_still([gate.pk], using).get(gate.pk, 0) if drawn.tokens else 0)
    if wanted <= 0:
        # The next claim draws a token, and then sets when the gate opens again.
        return 0, max(drawn.opens_at, now + timedelta(seconds=UNCLAIMED_SECONDS if drawn.tokens else TICK_SECONDS))
    started = open_first({gate.pk: wanted}, using=using)
    if started < wanted:
        # No job waits behind the gate any more, so it need not be opened again.
        return started, None
    return started, max(drawn.opens_at, now + timedelta(seconds=TICK_SECONDS))


def _open_relimited(gate: Gate, column: str, using: str) -> Opened | None:
    """Open jobs behind a gate whose limit is not known, as that of its task is not: claims write it there.

    None: an operator has set one, which the gate has now in `column`.
    """
    if gate.queue is None or gate.task is None:
        return _open_all(gate, using)
    rule = rules(using).of_task(gate.queue, gate.task)
    if rule.starts_nothing:
        # Behind the gate of a key jobs of other tasks may wait, too.
        own = {slot_subject(gate.queue, gate.task).number, rate_subject(gate.queue, gate.task).number}
        return (0, None) if gate.pk in own else _open_all(gate, using, SOME)
    limits = {"most": (rule.sets_concurrency, rule.concurrency), "per_second": (rule.sets_rate, rule.per_second)}
    is_set, limit = limits[column]
    if not is_set or limit is None:
        return _open_all(gate, using, SOME)
    # Only if no claim has written another one meanwhile.
    rows = Gate.objects.using(using).filter(pk=gate.pk, most=None, per_second=None)
    update_unlocked(rows, using, **{column: limit})
    setattr(gate, column, limit)
    return None


def _open_all(gate: Gate, using: str, most: int = CHUNK) -> Opened:
    opened = open_first({gate.pk: most}, using=using)
    return opened, gate.now if opened else None  # type: ignore[attr-defined]


class Kind(NamedTuple):
    """A kind of limit: how its jobs are stopped, named and let in."""

    codes: tuple[str, ...]  # the first words of the wait_reasons of jobs that wait for it
    subject: Callable[[AtGate], Subject]  # what such a job waits for
    open: Callable[[Gate, str], Opened]  # opens jobs behind the gate of one subject, whose row has `now`
    stops: Callable[[Candidate, Asking], Stop | None] | None = None  # None: admit() counts its slots or tokens


KINDS = (
    Kind((PAUSED,), lambda job: pause_subject(job.queue, job.task or ""), _open_unless_paused, _paused),
    Kind((BREAKER,), _breaker_of, _open_behind_breaker, _not_closed),
    Kind((SLOT, KEY), lambda job: slot_subject(job.queue, job.task or "", job.concurrency_key), _open_slots),
    Kind((RATE,), lambda job: rate_subject(job.queue, job.task or "", job.concurrency_key), _open_paced),
)
_STOPS = tuple(kind.stops for kind in KINDS if kind.stops is not None)
_KIND_OF = {code: kind for kind in KINDS for code in kind.codes}


def stop_of(row: Candidate, asking: Asking) -> Stop | None:
    """Why a job may not start, by the first kind that stops it; None: it may, if it gets its slot and its token."""
    for stops in _STOPS:
        if (stop := stops(row, asking)) is not None:
            return stop
    return None


def open_gate(gate: Gate, using: str) -> Opened:
    """Open jobs behind a gate, which was read with the database's time as `now`."""
    kind = _kind_of(gate.wait_reason)
    # One of another release: claims close again what may not start.
    return _open_all(gate, using, SOME) if kind is None else kind.open(gate, using)


def gate_of(job: AtGate) -> Subject | None:
    """What a job behind a gate waits for, by its wait_reason."""
    kind = _kind_of(job.wait_reason or "")
    subject = None if kind is None else kind.subject(job)
    return subject if subject is not None and subject.wait_reason == job.wait_reason else None


def _kind_of(wait_reason: str) -> Kind | None:
    return _KIND_OF.get(wait_reason.partition(" ")[0])
