"""The places that are broken on purpose: each guard of each verb, ownership, lock order, clocks, retries, fences."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

_numbers = count(1)


@dataclass(frozen=True)
class Mutant:
    """In `file`, `old` becomes `new`; one of `tests`, on `database`, has to fail."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    database: str = "sqlite"
    number: int = field(default_factory=lambda: next(_numbers))


def _mutant(what: str, file: str, old: str, new: str, *tests: str, database: str = "sqlite") -> Mutant:
    return Mutant(what, f"jobqueue/{file}", old, new, tests, database)


SETTLE, FAIL, REAP, OPERATOR = (f"tests/transitions/test_{name}.py" for name in ("settle", "fail", "reap", "operator"))
WITHOUT_LOCKS = "tests/races/test_without_row_locks.py"
VERB_RACES = "tests/races/test_verb_races.py"
ORDERING = "tests/ordering/test_ordering_key.py"

OWNERSHIP = [
    _mutant(
        "ack does not look at the token",
        "transitions/acking.py",
        "rows = any_in_state(Job.Status.PROCESSING, using=using).filter(lock_token=_TOKEN)\n    changes",
        "rows = any_in_state(Job.Status.PROCESSING, using=using).exclude(lock_token=_TOKEN, pk__lt=0)\n    changes",
        SETTLE,
    ),
    _mutant(
        "fail, snooze, release and finish() do not look at the token",
        "transitions/leases.py",
        "using=lease.using).filter(lock_token=lease.token)",
        "using=lease.using)",
        SETTLE,
    ),
    _mutant(
        "heartbeats do not look at the token",
        "transitions/renewing.py",
        "mine = in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)\n        rows =",
        "mine = in_state(ids, Job.Status.PROCESSING, using=using)\n        rows =",
        SETTLE,
    ),
    _mutant(
        "the monitor renews leases without looking at the token",
        "transitions/renewing.py",
        "using=using).filter(reduce(or_, each))",
        "using=using)",
        WITHOUT_LOCKS,
        database="mysql",
    ),
    _mutant(
        "release_many does not look at the token",
        "transitions/releasing.py",
        "return in_state(job_ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)",
        "return in_state(job_ids, Job.Status.PROCESSING, using=using)",
        SETTLE,
    ),
    _mutant(
        "verbs of operators do not look at the fence",
        "transitions/operator.py",
        ".filter(fence=job.fence).update(**changes)",
        ".update(**changes)",
        WITHOUT_LOCKS,
        database="mysql",
    ),
    _mutant(
        "the state a verb expects is not in its WHERE",
        "models/rows.py",
        'return by_key.filter(Exact(Unindexed("status"), int(status)))\n\n\ndef any_in_state',
        "return by_key\n\n\ndef any_in_state",
        WITHOUT_LOCKS,
        database="mysql",
    ),
    _mutant(
        "the same for prepared statements: ack and claim",
        "models/rows.py",
        'Keys("ids", BigIntegerField())))\n    return by_key.filter(Exact(Unindexed("status"), int(status)))',
        'Keys("ids", BigIntegerField())))\n    return by_key',
        WITHOUT_LOCKS,
        database="mysql",
    ),
]

GUARDS = [
    _mutant(
        "a heartbeat revives a lease that ran out",
        "transitions/renewing.py",
        "rows = mine.filter(lock_until__gt=UtcNow())",
        "rows = mine.all()",
        SETTLE,
    ),
    _mutant(
        "the monitor revives leases that ran out",
        "transitions/renewing.py",
        "living = ours.filter(lock_until__gt=UtcNow())",
        "living = ours.all()",
        WITHOUT_LOCKS,
        database="mysql",
    ),
    _mutant(
        "the reaper does not ask again whether a lease ran out",
        "transitions/reaping.py",
        ".filter(lock_until__lt=UtcNow()).update(**changes)",
        ".update(**changes)",
        WITHOUT_LOCKS,
        database="mysql",
    ),
    _mutant(
        "the reaper takes leases that are good",
        "models/job.py",
        "return self.filter(status=1, lock_until__lt=UtcNow())",
        "return self.filter(status=1)",
        REAP,
    ),
    _mutant(
        "a claim takes jobs whose gate is closed",
        "transitions/claiming/candidates.py",
        "queue=queue, status=READY, gate=0, priority=priority, run_at__lte=UtcNow()",
        "queue=queue, status=READY, priority=priority, run_at__lte=UtcNow()",
        "tests/transitions/test_claim.py",
        ORDERING,
    ),
    _mutant(
        "a claim takes jobs that are not due",
        "transitions/claiming/candidates.py",
        "gate=0, priority=priority, run_at__lte=UtcNow()",
        "gate=0, priority=priority",
        "tests/transitions/test_claim.py",
    ),
    _mutant(
        "claim() works inside a caller's transaction",
        "transitions/claiming/claimer.py",
        '        refuse_open_transaction(self._using, "claim")\n',
        "",
        "tests/transitions/test_claim.py",
    ),
    _mutant(
        "a claim does not raise the fence",
        "transitions/claiming/request.py",
        '"fence": F("fence") + 1,',
        '"fence": F("fence"),',
        "tests/transitions/test_claim.py",
    ),
    _mutant(
        "a job that expired starts all the same",
        "transitions/claiming/expiring.py",
        "row.valid_until <= row.now]",
        "row.pk < 0]",
        "tests/tasks/test_task_fields.py",
    ),
    _mutant(
        "a failed job gets one attempt too many",
        "transitions/failing.py",
        "lease.attempt >= lease.max_attempts",
        "lease.attempt > lease.max_attempts",
        FAIL,
    ),
    _mutant(
        "a job that kills its worker gets one attempt too many",
        "transitions/crashes.py",
        "lease.attempt >= lease.max_attempts",
        "lease.attempt > lease.max_attempts",
        "tests/transitions/test_crashes.py",
    ),
    _mutant(
        "a failure forgets that the job was asked to cancel",
        "transitions/failing.py",
        "if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):",
        "if held(lease).update(**changes):",
        FAIL,
        VERB_RACES,
    ),
    _mutant(
        "retry does not begin a new life",
        "transitions/operator.py",
        '"epoch": job.epoch + 1,',
        '"epoch": job.epoch,',
        OPERATOR,
        "tests/models/test_columns.py",
    ),
    _mutant(
        "retry takes a dedupe key that a live job holds",
        "transitions/operator.py",
        "if status in (Job.Status.READY, Job.Status.PROCESSING):\n            return False",
        "if status is None:\n            return False",
        "tests/producer/test_dedupe.py",
        "tests/races/test_dedupe_races.py",
    ),
    _mutant(
        "discard ends a job that runs",
        "transitions/operator.py",
        "if job.status in (Job.Status.READY, Job.Status.FAILED) else None",
        "if job.status != Job.Status.DONE else None",
        OPERATOR,
    ),
    _mutant(
        "settling leaves the end of the lease on the row",
        "transitions/leases.py",
        '"locked_at": None, "lock_until": None}',
        '"locked_at": None}',
        SETTLE,
    ),
    _mutant(
        "a dedupe key is free as soon as its job has ended",
        "producer/dedupe.py",
        "unique_seconds__isnull=True) & ended & in_window)",
        "unique_seconds__isnull=True) & ended)",
        "tests/producer/test_dedupe.py",
    ),
    _mutant(
        "an enqueue takes a dedupe key from a job that was retried meanwhile",
        "producer/dedupe.py",
        "row = in_state([job_id], status, using=using).filter(dedupe_key=key, fence=fence)",
        "row = Job.objects.using(using).filter(pk=job_id)",
        WITHOUT_LOCKS,
        database="mysql",
    ),
    _mutant(
        "a verb does not promote the next job of the key",
        "transitions/verb.py",
        "        _promote(found, using)\n        for status",
        "        for status",
        ORDERING,
    ),
    _mutant(
        "a claim does not promote the next job behind one that expired",
        "transitions/verb.py",
        '    _promote(written, using)\n    _announce("claim", written, {})',
        '    _announce("claim", written, {})',
        ORDERING,
        "tests/tasks/test_task_fields.py",
        "tests/faults/test_told_after_lost_commits.py",
    ),
    _mutant(
        "a lease that the write did not find is not reported as lost",
        "transitions/verb.py",
        "gone += [lease for lease in leases if lease.job_id not in ids]",
        "ids.clear()",
        SETTLE,
    ),
    _mutant(
        "a key goes on behind a failed job",
        "ordering/promote.py",
        "entry.status in (None, *FREE_KEY)",
        "entry.status in (None, *FREE_KEY, Job.Status.FAILED)",
        ORDERING,
    ),
]

ORDER = [
    _mutant(
        "mutex_many locks in the order it was asked",
        "locks/mutex_rows.py",
        "for key in sorted(set(keys)):",
        "for key in dict.fromkeys(keys):",
        "tests/locks/test_mutex.py",
        database="mysql",
    ),
    _mutant(
        "lock_all acquires in the order of its arguments",
        "locks/lock.py",
        "for lock in sorted(locks, key=lambda lock: (lock.kind, lock.name.encode())):",
        "for lock in locks:",
        "tests/locks/test_lease_lock.py",
        "tests/locks/test_named_lock.py",
        "tests/locks",
    ),
    _mutant(
        "enqueue locks ordering keys in the order of the jobs",
        "ordering/lanes.py",
        "for digest in sorted({_digest(queue, key) for queue, key in keys}):",
        "for digest in dict.fromkeys(_digest(queue, key) for queue, key in keys):",
        "tests/transitions/test_lock_order.py",
    ),
    _mutant(
        "batches settle leases in the order they come",
        "transitions/leases.py",
        "for lease in sorted(check_leases(leases), key=lambda lease: lease.job_id):",
        "for lease in leases:",
        "tests/transitions/test_lock_order.py",
    ),
    _mutant(
        "events of a key are sent in any order",
        "outbox/claiming.py",
        "for row in sorted(rows, key=lambda row: row.pk):",
        "for row in sorted(rows, key=lambda row: -row.pk):",
        "tests/outbox/test_relay.py",
    ),
]

CLOCKS = [
    _mutant(
        "MySQL's clock is in the zone of the session",
        "db/mysql/dialect.py",
        'now_sql = "UTC_TIMESTAMP(6)"',
        'now_sql = "NOW(6)"',
        "tests/db/test_clock.py",
        database="mysql",
    ),
    _mutant(
        "MySQL counts the end of a lease in the zone of the session",
        "db/mysql/dialect.py",
        '* 1000000), UTC_TIMESTAMP(6))"',
        '* 1000000), NOW(6))"',
        "tests/db/test_clock.py",
        "tests/transitions/test_settle.py",
        database="mysql",
    ),
    _mutant(
        "PostgreSQL's clock stands still within a transaction",
        "db/postgresql/dialect.py",
        'now_sql = "STATEMENT_TIMESTAMP()"',
        'now_sql = "TRANSACTION_TIMESTAMP()"',
        "tests/db/test_clock.py",
        database="postgres",
    ),
]

TRANSACTIONS = [
    _mutant(
        "an enqueue without a key is repeated after a lost answer",
        "producer/enqueueing.py",
        "insertion([job], alias, until), using=alias, repeatable=False)",
        "insertion([job], alias, until), using=alias)",
        "tests/faults/test_lost_answers.py",
        database="mysql",
    ),
    _mutant(
        "a transient fault is retried inside the caller's transaction",
        "db/retry.py",
        "        if in_callers_transaction(connections[using]):\n            return work()\n",
        "",
        "tests/db/test_autocommit.py",
        database="mysql",
    ),
    _mutant(
        "finish() does not look at the lease before its block",
        "context/job_context.py",
        'if not held(self.lease).select_for_update().values_list("pk", flat=True):',
        "if self.lease is None:",
        "tests/transitions/test_finish.py",
    ),
    _mutant(
        "finish() swallows what the block swallowed",
        "context/job_context.py",
        "                raise_swallowed_errors(alias),\n",
        "",
        "tests/transitions/test_finish.py",
        "tests/faults",
        database="mysql",
    ),
    _mutant(
        "publish() works outside a transaction",
        "outbox/publishing.py",
        "if not in_callers_transaction(connection):",
        "if connection is None:",
        "tests/outbox/test_publish.py",
    ),
    _mutant(
        "publish() does not hold its key until COMMIT",
        "outbox/publishing.py",
        "            hold_key(OutboxKey, raw, alias)\n",
        "",
        "tests/outbox",
        database="mysql",
    ),
    _mutant(
        "take() does not ask how many rows its stamp has met",
        "allocate.py",
        "update_locked(mine, request.changes) != len(rows):",
        "update_locked(mine, request.changes) < 0:",
        "tests/public/test_allocate.py",
    ),
    _mutant(
        "once() takes a record that has run out for good",
        "idempotency/records.py",
        "elif found.is_alive:  # type: ignore[attr-defined]",
        "elif found is not None:",
        "tests/idempotency/test_once.py",
    ),
]

FENCES = [
    _mutant(
        "two takers of a free lease lock both get it",
        "locks/lease.py",
        'seen = _row(using).filter(fence=Slot("seen", LockRow._meta.get_field("fence")), expires_at__lte=UtcNow())',
        "seen = _row(using)",
        WITHOUT_LOCKS,
        database="mysql",
    ),
    _mutant(
        "a lease lock that ended can be renewed",
        "locks/lease.py",
        "alive = _row(using).filter(owner_token=_TOKEN, expires_at__gt=UtcNow())",
        "alive = _row(using).filter(owner_token=_TOKEN)",
        "tests/locks/test_lease_lock.py",
    ),
    _mutant(
        "a lease lock is released by whoever asks",
        "locks/lease.py",
        "prepare_change_by_key(_row(using).filter(owner_token=_TOKEN), {",
        "prepare_change_by_key(_row(using).exclude(owner_token=None), {",
        "tests/locks/test_lease_lock.py",
    ),
    _mutant(
        "fences begin anew when a lock's row was cleaned up",
        "locks/fence_floor.py",
        "SELECT {name}, fence + 1, {owner}, {token}, {ends} ",
        "SELECT {name}, 1, {owner}, {token}, {ends} ",
        "tests/locks/test_lease_lock.py",
        "tests/locks",
    ),
    _mutant(
        "an older fence writes a FencedModel row",
        "fencing.py",
        "rows.filter(fence__lte=number).update(**changes, fence=number)",
        "rows.update(**changes, fence=number)",
        "tests/public/test_fencing.py",
    ),
    _mutant(
        "a relay marks events that another has leased meanwhile",
        "outbox/statements.py",
        "return _by_key(using).filter(lock_token=_TOKEN)",
        "return _by_key(using).exclude(lock_token=_TOKEN, pk__lt=0)",
        "tests/outbox/test_relay.py",
    ),
    _mutant(
        "a relay leases events that are not due",
        "outbox/statements.py",
        "    rows = _by_key(using).filter(due_at__lte=UtcNow())\n    return prepare_change_by_key(rows, {",
        "    rows = _by_key(using)\n    return prepare_change_by_key(rows, {",
        WITHOUT_LOCKS,
        database="mysql",
    ),
]

CONNECTIONS = [
    _mutant(
        "PostgreSQL: a lost answer counts as a statement that was never sent",
        "db/postgresql/dialect.py",
        "str(error).startswith(_NEVER_SENT)",
        "'failed: ' in str(error)",
        "tests/faults/test_lost_answers.py",
        database="postgres",
    ),
    _mutant(
        "mutex() grants an older snapshot on MySQL",
        "db/mysql/mutex.py",
        "        if takes or not unseen or self._swept(cursor):\n",
        "        if self.key is None:\n",
        "tests/locks/test_mutex_snapshots.py",
        database="mysql",
    ),
    _mutant(
        "a canceled coroutine does not wait for the release of its lock",
        "locks/shielded.py",
        "        except asyncio.CancelledError as error:\n            canceled = error\n",
        "        except asyncio.CancelledError:\n            doing.cancel()\n            raise\n",
        "tests/locks/test_canceled_coroutines.py",
    ),
    _mutant(
        "the session of a job is passed on as it is",
        "worker/shared/cleanup.py",
        "        return fault_vendor(connection.alias).reset_session(connection)\n",
        "        return True\n",
        "tests/worker/test_leftovers.py",
        database="mysql",
    ),
    _mutant(
        "once() lets its block write to another database",
        "idempotency/once.py",
        'enter_context(refuse_writes_elsewhere(alias, "once()", advice=_ADVICE, locks=True))',
        "__class__",
        "tests/own_database/test_once_elsewhere.py",
    ),
]

SLOTS, RATES, BREAKER, RACES = (
    f"tests/{name}.py" for name in ("gates/test_slots", "gates/test_rates", "gates/test_breaker", "races/test_limits")
)

GATES = [
    _mutant(
        "a slot counts as taken whatever fence its job has now",
        "gates/slots.py",
        "if fences.get(slot.job_id) == slot.fence}",
        "if slot.job_id in fences}",
        SLOTS,
    ),
    _mutant(
        "leases above a limit that was lowered do not count",
        "gates/slots.py",
        "        return self._running >= most\n",
        "        return self._next >= most\n",
        "tests/gates/test_set_limit.py",
    ),
    _mutant(
        "the look for the next job of a key orders by less than its index",
        "gates/opening.py",
        '    order = ("subject", "urgency", "run_at", "job_id")',
        '    order = ("urgency", "run_at", "job_id")',
        "tests/gates/test_many_keys.py",
        database="mysql",
    ),
    _mutant(
        "one who opens gates does not lock their jobs",
        "gates/opening.py",
        'rows.select_for_update().values_list("pk", "queue"',
        'rows.values_list("pk", "queue"',
        RACES,
        database="postgres",
    ),
    _mutant(
        "a claim believes that it got every slot that it inserted",
        "gates/slots.py",
        "    return {slot.job_id for slot in _read({slot.subject for slot in fresh}, using) if slot in mine}",
        "    return {slot.job_id for slot in mine}",
        RACES,
        database="postgres",
    ),
    _mutant(
        "jobs that start use no token unless others wait for one",
        "gates/admit.py",
        "        if tokens[number] or number in waited:\n",
        "        if number in waited:\n",
        RATES,
    ),
    _mutant(
        "a bucket is refilled when the clock is set back",
        "gates/buckets.py",
        "    ahead = min(max(ahead, 0.0), size * seconds)\n",
        "    ahead = max(ahead, 0.0) if ahead <= size * seconds else 0.0\n",
        "tests/unit/test_buckets.py",
    ),
    _mutant(
        "a bucket grows while nobody uses it",
        "gates/buckets.py",
        "    ahead = min(max(ahead, 0.0), size * seconds)\n",
        "    ahead = min(ahead, size * seconds)\n",
        "tests/unit/test_buckets.py",
    ),
    _mutant(
        "an ended lease opens no gate",
        "transitions/verb.py",
        "    freed(slots_to_free([job for job in ended if isinstance(job, Lease)], using), using=using)\n",
        "",
        SLOTS,
    ),
    _mutant(
        "a slot that is freed while a claim closes gates opens none",
        "transitions/claiming/claimer.py",
        "            gates_closed(closed, using=self._using)\n",
        "            pass\n",
        "tests/gates/test_opening.py",
    ),
    _mutant(
        "a failed probe uses an attempt",
        "gates/breaker.py",
        "        return {*back, probe}, row\n",
        "        return back - {probe}, row\n",
        BREAKER,
    ),
    _mutant(
        "two claims make a probe each",
        "gates/breaker.py",
        '    list(BreakerState.objects.using(using).filter(pk=dependency).select_for_update().values_list("pk"))\n',
        "",
        RACES,
        database="postgres",
    ),
    _mutant(
        "a pause never ends by itself",
        "gates/rules.py",
        "        paused = row.mode == FlowRule.Mode.PAUSED and not ended\n",
        "        paused = row.mode == FlowRule.Mode.PAUSED\n",
        "tests/gates/test_pause.py",
    ),
    _mutant(
        "claims of a queue with a limit do not lock its gate",
        "gates/whole_queues.py",
        ".filter(pk=subject.number).select_for_update()",
        ".filter(pk=subject.number)",
        RACES,
        database="postgres",
    ),
    _mutant(
        "a bulk is added as long as the queue is not full before it",
        "producer/back_pressure.py",
        "        if after.ready <= most:\n            continue\n",
        "        if after.ready - counts[queue] < most:\n            continue\n",
        "tests/producer/test_back_pressure.py",
    ),
    _mutant(
        "the sweep leaves jobs behind gates with free slots",
        "maintenance/gate_sweep.py",
        "        opened += open_free(some, using=using)\n",
        "",
        "tests/gates/test_gate_sweep.py",
    ),
]

MUTANTS = [*OWNERSHIP, *GUARDS, *ORDER, *CLOCKS, *TRANSACTIONS, *FENCES, *CONNECTIONS, *GATES]
