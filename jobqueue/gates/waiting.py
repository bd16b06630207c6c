"""Jobs behind gates: close_gates() puts them there, in the claim's transaction, and open_first() lets them in.

Gates are opened in transactions of their own: after the commit of a claim that has closed some, and after one that has
ended a lease. If the process dies between the two, a sweep opens them. To open too many does no harm: the claim checks
again. To open one twice is not possible.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import chain
from typing import NamedTuple

from django.db import Error, connections, transaction
from django.db.models import BigIntegerField, Case, F, OuterRef, Q, Subquery, Value, When

from jobqueue import wakeup
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.clock import Stored, UtcNow, UtcNowPlus
from jobqueue.db.expressions import AnyOf, ByKey, Keys, Slot
from jobqueue.db.prepared import Prepared, prepare_change, prepare_delete, prepare_insert, prepare_rows
from jobqueue.db.retry import retry_transient
from jobqueue.db.statements import LooseScan
from jobqueue.db.upsert import upsert
from jobqueue.exceptions import DatabaseBusy
from jobqueue.gates import declared
from jobqueue.gates.limits import SLOT, Place, Subject, limits_of, rate_subject, slot_subject
from jobqueue.gates.locking import unlocked_of, update_unlocked
from jobqueue.gates.rules import last_rules, rules
from jobqueue.gates.slots import in_use, keyed_without_slot
from jobqueue.models import Gate, GateWait, Job
from jobqueue.models.rows import any_in_state, in_state
from jobqueue.ordering import SCHEDULED

#: `gate` of a job that waits for a slot, a token, a breaker or the end of its task's pause; 1 and 2 are in use
FLOW_GATE = 3
logger = logging.getLogger("jobqueue.transitions")
#: jobs that one statement opens; and those that one closes: each row is compared with half of the branches of a CASE
CHUNK = 1000
CLOSED_MAX = 100
#: so long after a job was passed over because others had locked its row, its gate is looked at again
LOCKED_SECONDS = 1.0
_callback: Callable[[], None] | None = None
_opened_callback: Callable[[Mapping[str, int]], None] | None = None
#: jobs of one subject, and subjects, that are remembered, and for how long: whoever serves their queue may be unable to
#: run them. For one that is forgotten another one is opened.
JOBS_MAX, SUBJECTS_MAX, SECONDS_MAX = 1000, 1000, 600.0


class Blocked(NamedTuple):
    """A job that may not start, and what it waits for."""

    job_id: int
    priority: int
    run_at: datetime
    subject: Subject
    task: str | None = None  # whose jobs wait there, in this queue; None: jobs of any queue and task do
    most: int | None = None  # slots that the subject has, if it waits for one
    opens_at: datetime | None = None  # when a pause ends by itself


def close_gates(blocked: Sequence[Blocked], queue: str, using: str) -> set[int]:
    """Put READY jobs, whose rows the open transaction has locked, behind their gates.

    Returns the subjects whose gates others keep locked: what is known of them was not written, so that whoever opens
    them may miss these jobs. look_soon() is due after the commit.
    """
    unwritten = _write_gates(blocked, queue, using)
    for start in range(0, len(blocked), CLOSED_MAX):
        some = blocked[start : start + CLOSED_MAX]
        reasons = {one.job_id: one.subject.wait_reason for one in some}
        _close(using).change(ids=reasons, reason=reasons)
        # A job that was opened by plain SQL, or by an older release, may have left a row.
        delete_waits(reasons, using)
        _insert(using).change(ids=reasons, subject={one.job_id: one.subject.number for one in some})
    return unwritten


def look_soon(subjects: Collection[int], using: str, *, seconds: float = 0.0) -> None:
    """Let those who open gates look at these in so many seconds, if they would not earlier.

    A gate that another transaction has locked is left to it, and to the sweep.
    """
    if subjects:
        gates = Gate.objects.using(using).filter(pk__in=sorted(subjects))
        # Also if its time has come: whoever looks at it just now would take the time away.
        others = gates.filter(Q(opens_at=None) | Q(opens_at__gt=UtcNowPlus(seconds)) | Q(opens_at__lte=UtcNow()))
        update_unlocked(others, using, opens_at=UtcNowPlus(seconds), updated_at=UtcNow())


def subjects_waiting(after: int, most: int, using: str) -> list[int]:
    """The next `most` subjects above `after` for which jobs wait, in order: one index seek for each."""
    connection = connections[using]
    table, column = map(connection.ops.quote_name, (GateWait._meta.db_table, "subject"))
    scan = LooseScan(table, [column], "ix_gate_wait", after=True)
    with connection.cursor() as cursor:
        cursor.execute(vendor(using).loose_scan_sql(scan), [after, most])
        return [int(subject) for (subject,) in cursor.fetchall()]


def delete_waits(ids: Iterable[int], using: str) -> None:
    """Delete the rows of jobs that wait no longer."""
    _delete(using).change(ids=ids)


def open_again(job_id: int, reason: str | None, using: str) -> None:
    """Let a READY job ask for its limits again, whose row the open transaction has locked: its key has changed."""
    rows = in_state([job_id], Job.Status.READY, using=using).filter(gate=FLOW_GATE)
    if rows.update(gate=0, wait_reason=reason, updated_at=UtcNow()):
        delete_waits([job_id], using)


@cache
def _close(using: str) -> Prepared:
    rows = any_in_state(Job.Status.READY, using=using).filter(gate=0)
    reason = ByKey("reason", Job._meta.get_field("wait_reason"))
    return prepare_change(rows, {"gate": FLOW_GATE, "wait_reason": reason, "updated_at": UtcNow()})


@cache
def _delete(using: str) -> Prepared:
    ids = Keys("ids", BigIntegerField())
    return prepare_delete(GateWait.objects.using(using).filter(AnyOf(F("job_id"), ids)))


@cache
def _insert(using: str) -> Prepared:
    """A row for each job, with its subject. The rest is read from the job: an instant of Python costs more."""
    rows = Job.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField())))
    subject = ByKey("subject", BigIntegerField())
    found = rows.order_by().values_list("pk", subject, Value(0) - F("priority"), Stored(F("run_at")))
    return prepare_insert(GateWait, ("job_id", "subject", "urgency", "run_at"), found)


def _write_gates(blocked: Sequence[Blocked], queue: str, using: str) -> set[int]:
    """What is known of the gates, for those who open them: they may run in a process that does not know the task."""
    # In one order, so that two claims do not wait for each other crosswise.
    # Of several limits of one key the smallest counts.
    order = sorted(blocked, key=lambda one: (one.subject.number, one.most is not None, -(one.most or 0)))
    found = {one.subject.number: one for one in order}
    free = unlocked_of(found, using)
    groups: dict[tuple[str, ...], list[tuple[object, ...]]] = defaultdict(list)
    for number, one in found.items():
        if number not in free:
            continue
        place = (None, None) if one.task is None else (queue, one.task)
        # The bucket of a rate has written its own columns in this transaction.
        known = {"most": one.most, "opens_at": one.opens_at}
        own = {name: value for name, value in known.items() if value is not None}
        groups[tuple(own)].append((number, one.subject.wait_reason, *place, *own.values()))
    for own_names, rows in sorted(groups.items()):
        changed = ("wait_reason", "queue", "task", *own_names)
        # Used now: the sweep deletes gates that nobody has used for long.
        upsert(Gate, rows, keys=("subject",), changed=changed, stamped=("updated_at",), using=using)
    return found.keys() - free


def on_opened(callback: Callable[[Mapping[str, int]], None]) -> None:
    """Call callback(counts by queue) after each commit of this process that opened jobs: it must not block or raise."""
    global _opened_callback
    _opened_callback = callback


def on_closed(callback: Callable[[], None]) -> None:
    """Call callback() after each claim of this process that has closed gates: it must not block or raise."""
    global _callback
    _callback = callback


def open_next(subjects: Iterable[int], *, using: str) -> None:
    """Open one waiting job for each slot in `subjects` that a lease has freed. Never raises.

    Now, or when the open transaction is committed.
    """
    if wanted := list(subjects):
        _after_commit(partial(open_first, Counter(wanted), using=using), using)


def recheck_closed(subjects: Iterable[int], *, using: str, unwritten: Collection[int] = ()) -> None:
    """Look again at gates that a claim has closed, after its commit: slots may have been freed before. Never raises.

    `unwritten`: as close_gates() has returned them.
    """
    wanted = set(subjects)
    if unwritten:
        _after_commit(partial(look_soon, unwritten, using), using)
    if wanted:
        if _callback is not None:
            _callback()
        _after_commit(partial(open_free, wanted, using=using), using)


def ended_unstarted(jobs: Iterable[tuple[str | None, bytes | None]], queue: str, *, using: str) -> None:
    """Let the next jobs have the slots and tokens of those that a claim has ended instead of starting. Never raises.

    `jobs`: task and concurrency key of each. They may have been opened for a slot or a token.
    """
    known = rules(using) if declared.tasks() else last_rules(using)
    places = [(queue, task, key) for task, key in jobs if task and any(limits_of(queue, task, key, known))]
    if places:
        rates = sorted({rate_subject(*place).number for place in places})
        paced = Gate.objects.using(using).filter(pk__in=rates, opens_at__gt=UtcNow())
        _after_commit(partial(update_unlocked, paced, using, opens_at=UtcNow()), using)
        recheck_closed((slot_subject(*place).number for place in places), using=using)


def _after_commit(work: Callable[[], object], using: str) -> None:
    def open_or_log() -> None:
        try:
            work()
        except (Error, DatabaseBusy) as error:
            logger.warning("jobs that wait for slots wait for the next sweep: %s", error)

    if not in_open_transaction(using):
        open_or_log()
    elif connections[using].in_atomic_block:
        transaction.on_commit(open_or_log, using=using, robust=True)
    # Else autocommit was turned off by hand, and Django does not see the commit: the sweep will find them.


def open_free(subjects: Iterable[int], *, using: str) -> int:
    """Open as many jobs of each subject as it has free slots; how many were opened."""
    wanted = sorted(subjects)
    if not wanted:
        return 0
    gates: Sequence[tuple[int, int, str, str | None, str | None]]
    gates = retry_transient("promote", partial(_limited(using).rows, subjects=wanted), using=using)
    # None: those of a key.
    tasks = {
        subject: Place(queue or "", task) if reason.startswith(f"{SLOT} ") and task is not None else None
        for subject, _, reason, queue, task in gates
    }
    used = retry_transient("promote", partial(in_use, tasks, using), using=using)
    # Where nobody claims, as in a paused queue, no more are opened than may start.
    ready = unclaimed.open_still(tasks, using)
    free = {subject: most - used[subject] - ready.get(subject, 0) for subject, most, *_ in gates}
    keyed = {
        subject: queue
        for subject, _, _, queue, _ in gates
        if queue is not None and tasks[subject] is None and free[subject] > 0
    }
    if keyed:
        others = retry_transient("promote", partial(keyed_without_slot, keyed, using), using=using)
        free = {subject: count - others[subject] for subject, count in free.items()}
    return open_first({subject: count for subject, count in free.items() if count > 0}, using=using)


def open_first(counts: Mapping[int, int], *, using: str) -> int:
    """Open the first `counts[subject]` jobs that wait for each subject; how many were opened.

    Jobs whose rows others have locked are passed over, and looked at again soon.
    """
    left, opened = dict(counts), 0
    locked: defaultdict[int, set[int]] = defaultdict(set)
    while left:
        wanted = {subject: count + len(locked[subject]) for subject, count in left.items()}
        found = retry_transient("promote", partial(_first, wanted, using), using=using)
        fresh = {
            subject: some
            for subject, ids in found.items()
            if (some := [job_id for job_id in ids if job_id not in locked[subject]][: left[subject]])
        }
        if not fresh:
            break
        done, passed = _open_jobs(list(chain.from_iterable(fresh.values())), using)
        opened += len(done)
        for subject, ids in fresh.items():
            unclaimed.add(subject, ids, using)
            locked[subject] |= passed.intersection(ids)
        # Others may have opened some of these, or they were canceled: those behind them have their turn.
        counts = {subject: sum(job_id in done for job_id in ids) for subject, ids in fresh.items()}
        left = {subject: rest for subject, count in counts.items() if (rest := left[subject] - count) > 0}
    look_soon([subject for subject, ids in locked.items() if ids], using, seconds=LOCKED_SECONDS)
    return opened


def _first(counts: Mapping[int, int], using: str) -> dict[int, list[int]]:
    """The ids of the first jobs that wait for each subject, for those for which any do."""
    if {*counts.values()} == {1}:
        rows = _one_of_each(using).rows(subjects=counts)
        return {subject: [job_id] for subject, job_id in rows if job_id is not None}
    found: dict[int, list[int]] = {}
    for size in {min(count, CHUNK) for count in counts.values()}:
        wanted = [{"subject": subject} for subject, count in counts.items() if min(count, CHUNK) == size]
        for subject, job_id in _look(using, size).rows_of_each(wanted):
            found.setdefault(subject, []).append(job_id)
    return found


def open_jobs(ids: Sequence[int], using: str) -> set[int]:
    """Open those of these jobs that are closed, in transactions of CHUNK; their ids.

    A job whose row another transaction has locked is left behind its gate: whoever has it may keep it for long, and the
    threads that open gates have others to open.
    """
    return _open_jobs(ids, using)[0]


def _open_jobs(ids: Sequence[int], using: str) -> tuple[set[int], set[int]]:
    """The ids of those that were opened, and of those that others have locked."""
    opened: set[int] = set()
    locked: set[int] = set()

    def write(some: Sequence[int], queues: Counter[str]) -> tuple[set[int], set[int]]:
        with vendor(using).transaction(connections[using]):
            # All of them, so that none is closed again before its row among those that wait is deleted; in one order.
            rows = _lock(using).rows(ids=some)
            rest = set(some) - {job_id for job_id, *_ in rows}
            kept = {job_id for (job_id,) in _exist(using).rows(ids=sorted(rest))} if rest else set()
            closed = {job_id for job_id, _, *state in rows if state == [Job.Status.READY, FLOW_GATE]}
            for job_id, queue, _, _ in rows:
                queues[queue] += job_id in closed
            if closed:
                _opening(using).change(ids=sorted(closed))
            if mine := [job_id for job_id in some if job_id not in kept]:
                delete_waits(mine, using)
            return closed, kept

    for start in range(0, len(ids), CHUNK):
        queues: Counter[str] = Counter()
        some = sorted(ids[start : start + CHUNK])
        closed, kept = retry_transient("promote", partial(write, some, queues), using=using)
        opened, locked = opened | closed, locked | kept
        # Also if none was closed any more: a try before the last one may have been committed without an answer.
        for queue in queues:
            wakeup.notify(queue, using)
        if opened and _opened_callback is not None:
            _opened_callback(queues)
    return opened, locked


@cache
def _lock(using: str) -> Prepared:
    rows = Job.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField()))).order_by("pk")
    with transaction.atomic(using=using):
        return prepare_rows(vendor(using).lock_rows(rows).values_list("pk", "queue", "status", "gate"))


@cache
def _exist(using: str) -> Prepared:
    return prepare_rows(
        Job.objects.using(using).filter(AnyOf(F("pk"), Keys("ids", BigIntegerField()))).values_list("pk")
    )


@cache
def _limited(using: str) -> Prepared:
    rows = Gate.objects.using(using).filter(AnyOf(F("pk"), Keys("subjects", BigIntegerField())))
    return prepare_rows(rows.filter(most__isnull=False).values_list("pk", "most", "wait_reason", "queue", "task"))


@cache
def _one_of_each(using: str) -> Prepared:
    """The first job that waits for each subject, if any. Where a gate has no row, the sweep opens its jobs.

    rows_of_each() would send a UNION of as many looks, and PostgreSQL would plan each of them every time.
    """
    # With `subject`, although it is one: MySQL would read and sort all that wait for it.
    order = ("subject", "urgency", "run_at", "job_id")
    first = GateWait.objects.using(using).filter(subject=OuterRef("pk")).order_by(*order).values("job_id")[:1]
    gates = Gate.objects.using(using).filter(AnyOf(F("pk"), Keys("subjects", BigIntegerField())))
    return prepare_rows(gates.annotate(first=Subquery(first)).values_list("pk", "first"))


@lru_cache(maxsize=64)
def _look(using: str, size: int) -> Prepared:
    rows = GateWait.objects.using(using).filter(subject=Slot("subject", BigIntegerField()))
    return prepare_rows(rows.order_by("urgency", "run_at", "job_id").values_list("subject", "job_id")[:size])


@cache
def _opening(using: str) -> Prepared:
    reason = Case(When(run_at__gt=UtcNow(), then=Value(SCHEDULED)), output_field=Job._meta.get_field("wait_reason"))
    rows = any_in_state(Job.Status.READY, using=using).filter(gate=FLOW_GATE)
    return prepare_change(rows, {"gate": 0, "wait_reason": reason, "updated_at": UtcNow()})


class _Unclaimed:
    """The jobs that this process has opened and that no claim has met yet: the next slots and tokens are theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], dict[int, float]] = OrderedDict()

    def add(self, subject: int, ids: Iterable[int], using: str) -> None:
        """Remember jobs that were opened for a slot or a token of `subject`."""
        with self._lock:
            known = self._known.setdefault((using, subject), {})
            known |= dict.fromkeys(ids, time.monotonic())
            for first in list(known)[:-JOBS_MAX]:
                del known[first]
            self._known.move_to_end((using, subject))
            if len(self._known) > SUBJECTS_MAX:
                self._known.popitem(last=False)

    def open_still(self, subjects: Collection[int], using: str) -> dict[int, int]:
        """How many of them are due and wait for a claim, by subject. One statement if any is remembered."""
        since = time.monotonic() - SECONDS_MAX
        with self._lock:
            known = {one: dict(self._known.get((using, one), {})) for one in subjects}
        asked = {job_id for ids in known.values() for job_id, at in ids.items() if at >= since}
        if not asked:
            return {}
        rows = Job.objects.using(using).filter(pk__in=asked, status=Job.Status.READY, gate=0, run_at__lte=UtcNow())
        found: set[int] = retry_transient("promote", lambda: set(rows.values_list("pk", flat=True)), using=using)
        with self._lock:
            for subject, ids in known.items():
                left = self._known.get((using, subject), {})
                for job_id in ids.keys() - found:
                    left.pop(job_id, None)
                if not left:
                    self._known.pop((using, subject), None)
        return {subject: len(ids.keys() & found) for subject, ids in known.items()}

    def clear(self) -> None:
        """Remember nothing: the database may be another one, or its ids begin again."""
        with self._lock:
            self._known.clear()


#: of this process
unclaimed = _Unclaimed()
