"""What jobs share with others: locks, fences, keys of idempotency, numbers that are taken, events."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

LOCKS = [
    mutant(
        "mutex_many locks in the order it was asked",
        "locks/mutex_rows.py",
        "_take",
        "for key in sorted(set(keys)):",
        "for key in dict.fromkeys(keys):",
        "tests/locks/test_mutex.py",
        database="mysql",
    ),
    mutant(
        "lock_all acquires in the order of its arguments",
        "locks/lock.py",
        "lock_all",
        "for lock in sorted(locks, key=lambda lock: (lock.kind, lock.name.encode())):",
        "for lock in locks:",
        "tests/locks/test_lease_lock.py",
        "tests/locks/test_named_lock.py",
        "tests/locks",
    ),
    mutant(
        "two takers of a free lease lock both get it",
        "locks/lease.py",
        "_taking",
        'seen = _row(using).filter(fence=Slot("seen", LockRow._meta.get_field("fence")), expires_at__lte=UtcNow())',
        "seen = _row(using)",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "a lease lock that ended can be renewed",
        "locks/lease.py",
        "_renewing",
        "alive = _row(using).filter(owner_token=_TOKEN, expires_at__gt=UtcNow())",
        "alive = _row(using).filter(owner_token=_TOKEN)",
        "tests/locks/test_lease_lock.py",
    ),
    mutant(
        "a lease lock is released by whoever asks",
        "locks/lease.py",
        "_ending",
        "prepare_change_by_key(_row(using).filter(owner_token=_TOKEN), {",
        "prepare_change_by_key(_row(using).exclude(owner_token=None), {",
        "tests/locks/test_lease_lock.py",
    ),
    mutant(
        "fences begin anew when a lock's row was cleaned up",
        "locks/lease.py",
        "_insert_sql",
        "SELECT {name}, total + 1, {owner}, {token}, {ends}",
        "SELECT {name}, 1, {owner}, {token}, {ends}",
        "tests/locks/test_lease_lock.py",
        "tests/locks",
    ),
    mutant(
        "a canceled coroutine does not wait for the release of its lock",
        "locks/lock.py",
        "run_shielded",
        """except asyncio.CancelledError as error:
            canceled = error""",
        """except asyncio.CancelledError:
            doing.cancel()
            raise""",
        "tests/locks/test_canceled_coroutines.py",
    ),
]

FENCING = [
    mutant(
        "an older fence writes a FencedModel row",
        "fencing.py",
        "FencedQuerySet.fenced_update",
        "rows.filter(fence__lte=number).update(**changes, fence=number)",
        "rows.update(**changes, fence=number)",
        "tests/public/test_fencing.py",
    ),
]

ALLOCATE = [
    mutant(
        "take() does not ask how many rows its stamp has met",
        "allocate.py",
        "_stamp",
        "update_locked(mine, request.changes) != len(rows):",
        "update_locked(mine, request.changes) < 0:",
        "tests/public/test_allocate.py",
    ),
]

IDEMPOTENCY = [
    mutant(
        "once() takes a record that has run out for good",
        "idempotency/records.py",
        "begin",
        "elif found.is_alive:  # type: ignore[attr-defined]",
        "elif found is not None:",
        "tests/idempotency/test_once.py",
    ),
    mutant(
        "once() lets its block write to another database",
        "idempotency/once.py",
        "Once.__enter__",
        'enter_context(refuse_writes_elsewhere(alias, "once()", advice=_ADVICE, locks=True))',
        "__class__",
        "tests/own_database/test_once_elsewhere.py",
    ),
]

OUTBOX = [
    mutant(
        "a relay moves its cursor only behind events that it finds",
        "outbox/claiming.py",
        "_NewEvents.lanes",
        "self._read_to.append((now, last))",
        "self._read_to.append((now, max(self._seen, default=0)))",
        "tests/outbox/test_poll_ranges.py",
    ),
    mutant(
        "a relay moves its cursor past events that may be committed late",
        "outbox/claiming.py",
        "_LATE_SECONDS",
        "2.0",
        "0.0",
        "tests/outbox/test_poll_ranges.py",
    ),
    mutant(
        "events of a key are sent in any order",
        "outbox/claiming.py",
        "_events",
        "for row in sorted(rows, key=lambda row: row.pk):",
        "for row in sorted(rows, key=lambda row: -row.pk):",
        "tests/outbox/test_relay.py",
    ),
    mutant(
        "publish() works outside a transaction",
        "outbox/publishing.py",
        "publish",
        "if not in_callers_transaction(connection):",
        "if connection is None:",
        "tests/outbox/test_publish.py",
    ),
    mutant(
        "publish() does not hold its key until COMMIT",
        "outbox/publishing.py",
        "publish",
        "hold_key(HeldKey, key_digest(raw), alias)",
        "",
        "tests/outbox",
        database="mysql",
    ),
    mutant(
        "a relay marks events that another has leased meanwhile",
        "outbox/statements.py",
        "_statement",
        "_by_key(using).filter(lock_token=_TOKEN)",
        "_by_key(using).exclude(lock_token=_TOKEN, pk__lt=0)",
        "tests/outbox/test_relay.py",
    ),
    mutant(
        "a relay leases events that are not due",
        "outbox/statements.py",
        "lease",
        """rows = _by_key(using).filter(due_at__lte=UtcNow())
    return prepare_change_by_key(rows, {""",
        """rows = _by_key(using)
    return prepare_change_by_key(rows, {""",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
]

MUTANTS = [*LOCKS, *FENCING, *ALLOCATE, *IDEMPOTENCY, *OUTBOX]
