"""The verbs: enqueue, claim, renew, settle, reap, retry; and what a run may do."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

MODELS = [
    mutant(
        "the state a verb expects is not in its WHERE",
        "models/rows.py",
        "in_state",
        'return by_key.filter(Exact(Unindexed("status"), int(status)))',
        "return by_key",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "the same for prepared statements: ack and claim",
        "models/rows.py",
        "any_in_state",
        'return by_key.filter(Exact(Unindexed("status"), int(status)))',
        "return by_key",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "the reaper takes leases that are good",
        "models/job.py",
        "JobQuerySet.expired",
        "return self.filter(status=1, lock_until__lt=UtcNow())",
        "return self.filter(status=1)",
        "tests/transitions/test_reap.py",
    ),
]

PRODUCER = [
    mutant(
        "a dedupe key is free as soon as its job has ended",
        "producer/dedupe.py",
        "_lapsed",
        "unique_seconds__isnull=True) & ended & in_window)",
        "unique_seconds__isnull=True) & ended)",
        "tests/producer/test_dedupe.py",
    ),
    mutant(
        "an enqueue takes a dedupe key from a job that was retried meanwhile",
        "producer/dedupe.py",
        "free",
        "row = in_state([job_id], status, using=using).filter(dedupe_key=key, fence=fence)",
        "row = Job.objects.using(using).filter(pk=job_id)",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "an enqueue without a key is repeated after a lost answer",
        "producer/enqueueing.py",
        "add",
        "insertion([job], alias, until), using=alias, repeatable=False)",
        "insertion([job], alias, until), using=alias)",
        "tests/faults/test_lost_answers.py",
        database="mysql",
    ),
    mutant(
        "a bulk is added as long as the queue is not full before it",
        "producer/back_pressure.py",
        "_within",
        """if after.ready <= most:
            continue""",
        """if after.ready - counts[queue] < most:
            continue""",
        "tests/producer/test_back_pressure.py",
    ),
]

ORDERING = [
    mutant(
        "a key goes on behind a failed job",
        "ordering/promote.py",
        "_Step.add",
        "entry.status in (None, *FREE_KEY)",
        "entry.status in (None, *FREE_KEY, Job.Status.FAILED)",
        "tests/ordering/test_ordering_key.py",
    ),
    mutant(
        "enqueue locks ordering keys in the order of the jobs",
        "ordering/lanes.py",
        "hold",
        "for digest in sorted({_digest(queue, key) for queue, key in keys}):",
        "for digest in dict.fromkeys(_digest(queue, key) for queue, key in keys):",
        "tests/transitions/test_lock_order.py",
    ),
]

TRANSITIONS = [
    mutant(
        "ack does not look at the token",
        "transitions/acking.py",
        "_done",
        """rows = any_in_state(Job.Status.PROCESSING, using=using).filter(lock_token=_TOKEN)
    changes""",
        """rows = any_in_state(Job.Status.PROCESSING, using=using).exclude(lock_token=_TOKEN, pk__lt=0)
    changes""",
        "tests/transitions/test_settle.py",
    ),
    mutant(
        "fail, snooze, release and finish() do not look at the token",
        "transitions/leases.py",
        "held",
        "using=lease.using).filter(lock_token=lease.token)",
        "using=lease.using)",
        "tests/transitions/test_settle.py",
    ),
    mutant(
        "heartbeats do not look at the token",
        "transitions/renewing.py",
        "heartbeat_many",
        """mine = in_state(ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)
        rows =""",
        """mine = in_state(ids, Job.Status.PROCESSING, using=using)
        rows =""",
        "tests/transitions/test_settle.py",
    ),
    mutant(
        "the monitor renews leases without looking at the token",
        "transitions/renewing.py",
        "_renew",
        "using=using).filter(reduce(or_, each))",
        "using=using)",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "release_many does not look at the token",
        "transitions/releasing.py",
        "_give_back_group",
        "return in_state(job_ids, Job.Status.PROCESSING, using=using).filter(lock_token=token)",
        "return in_state(job_ids, Job.Status.PROCESSING, using=using)",
        "tests/transitions/test_settle.py",
    ),
    mutant(
        "verbs of operators do not look at the fence",
        "transitions/operator.py",
        "_write",
        ".filter(fence=job.fence).update(**changes)",
        ".update(**changes)",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "a heartbeat revives a lease that ran out",
        "transitions/renewing.py",
        "heartbeat_many",
        "rows = mine.filter(lock_until__gt=UtcNow())",
        "rows = mine.all()",
        "tests/transitions/test_settle.py",
    ),
    mutant(
        "the monitor revives leases that ran out",
        "transitions/renewing.py",
        "_renew",
        "living = ours.filter(lock_until__gt=UtcNow())",
        "living = ours.all()",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "the reaper does not ask again whether a lease ran out",
        "transitions/reaping.py",
        "_write",
        ".filter(lock_until__lt=UtcNow()).update(**changes)",
        ".update(**changes)",
        "tests/races/test_without_row_locks.py",
        database="mysql",
    ),
    mutant(
        "a claim takes jobs whose gate is closed",
        "transitions/claiming/candidates.py",
        "due",
        "queue=queue, status=READY, gate=0, priority=priority, run_at__lte=UtcNow()",
        "queue=queue, status=READY, priority=priority, run_at__lte=UtcNow()",
        "tests/transitions/test_claim.py",
        "tests/ordering/test_ordering_key.py",
    ),
    mutant(
        "a claim takes jobs that are not due",
        "transitions/claiming/candidates.py",
        "due",
        "gate=0, priority=priority, run_at__lte=UtcNow()",
        "gate=0, priority=priority",
        "tests/transitions/test_claim.py",
    ),
    mutant(
        "claim() works inside a caller's transaction",
        "transitions/claiming/claimer.py",
        "Claimer.claim",
        'refuse_open_transaction(self._using, "claim")',
        "",
        "tests/transitions/test_claim.py",
    ),
    mutant(
        "a claim does not raise the fence",
        "transitions/claiming/request.py",
        "lease_columns",
        '"fence": F("fence") + 1,',
        '"fence": F("fence"),',
        "tests/transitions/test_claim.py",
    ),
    mutant(
        "a job that expired starts all the same",
        "transitions/claiming/expiring.py",
        "expired",
        "row.valid_until <= row.now]",
        "row.pk < 0]",
        "tests/tasks/test_task_fields.py",
    ),
    mutant(
        "a failed job gets one attempt too many",
        "transitions/failing.py",
        "_next",
        "lease.attempt >= lease.max_attempts",
        "lease.attempt > lease.max_attempts",
        "tests/transitions/test_fail.py",
    ),
    mutant(
        "a job that kills its worker gets one attempt too many",
        "transitions/crashes.py",
        "after_crash",
        "lease.attempt >= lease.max_attempts",
        "lease.attempt > lease.max_attempts",
        "tests/transitions/test_crashes.py",
    ),
    mutant(
        "a failure forgets that the job was asked to cancel",
        "transitions/failing.py",
        "_write",
        "if held(lease).filter(cancel_requested_at__isnull=True).update(**changes):",
        "if held(lease).update(**changes):",
        "tests/transitions/test_fail.py",
        "tests/races/test_verb_races.py",
    ),
    mutant(
        "retry does not begin a new life",
        "transitions/operator.py",
        "make_due",
        '"epoch": job.epoch + 1,',
        '"epoch": job.epoch,',
        "tests/transitions/test_operator.py",
        "tests/models/test_columns.py",
    ),
    mutant(
        "retry takes a dedupe key that a live job holds",
        "transitions/operator.py",
        "_take_key_back",
        """if status in (Job.Status.READY, Job.Status.PROCESSING):
            return False""",
        """if status is None:
            return False""",
        "tests/producer/test_dedupe.py",
        "tests/races/test_dedupe_races.py",
    ),
    mutant(
        "discard ends a job that runs",
        "transitions/operator.py",
        "_discard",
        "if job.status in (Job.Status.READY, Job.Status.FAILED) else None",
        "if job.status != Job.Status.DONE else None",
        "tests/transitions/test_operator.py",
    ),
    mutant(
        "settling leaves the end of the lease on the row",
        "transitions/leases.py",
        "RELEASED",
        '"locked_at": None, "lock_until": None}',
        '"locked_at": None}',
        "tests/transitions/test_settle.py",
    ),
    mutant(
        "a verb does not promote the next job of the key",
        "transitions/verb.py",
        "run_verb",
        """_promote(found, using)
        for status""",
        "for status",
        "tests/ordering/test_ordering_key.py",
    ),
    mutant(
        "a claim does not promote the next job behind one that expired",
        "transitions/verb.py",
        "settled",
        """_promote(written, using)
    _announce("claim", written, {})""",
        '_announce("claim", written, {})',
        "tests/ordering/test_ordering_key.py",
        "tests/tasks/test_task_fields.py",
        "tests/faults/test_told_after_lost_commits.py",
    ),
    mutant(
        "a lease that the write did not find is not reported as lost",
        "transitions/verb.py",
        "run_verb",
        "gone += [lease for lease in leases if lease.job_id not in ids]",
        "ids.clear()",
        "tests/transitions/test_settle.py",
    ),
    mutant(
        "batches settle leases in the order they come",
        "transitions/leases.py",
        "by_token",
        "for lease in sorted(check_leases(leases), key=lambda lease: lease.job_id):",
        "for lease in leases:",
        "tests/transitions/test_lock_order.py",
    ),
    mutant(
        "an ended lease opens no gate",
        "transitions/verb.py",
        "_promote",
        "freed(slots_to_free([job for job in ended if isinstance(job, Lease)], using), using=using)",
        "",
        "tests/gates/test_slots.py",
    ),
    mutant(
        "a slot that is freed while a claim closes gates opens none",
        "transitions/claiming/claimer.py",
        "Claimer.claim",
        "gates_closed(closed, using=self._using)",
        "pass",
        "tests/gates/test_opening.py",
    ),
]

CONTEXT = [
    mutant(
        "finish() does not look at the lease before its block",
        "context/job_context.py",
        "JobContext.finish",
        'if not held(self.lease).select_for_update().values_list("pk", flat=True):',
        "if self.lease is None:",
        "tests/transitions/test_finish.py",
    ),
    mutant(
        "finish() swallows what the block swallowed",
        "context/job_context.py",
        "JobContext.finish",
        "raise_swallowed_errors(alias),",
        "",
        "tests/transitions/test_finish.py",
        "tests/faults",
        database="mysql",
    ),
]

WORKER = [
    mutant(
        "the session of a job is passed on as it is",
        "worker/shared/cleanup.py",
        "_may_keep",
        "return fault_vendor(connection.alias).reset_session(connection)",
        "return True",
        "tests/worker/test_leftovers.py",
        database="mysql",
    ),
]

MUTANTS = [*MODELS, *PRODUCER, *ORDERING, *TRANSITIONS, *CONTEXT, *WORKER]
