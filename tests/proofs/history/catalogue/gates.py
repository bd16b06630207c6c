"""Flow: gates, limits, rates, breakers, pauses."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

GATES = [
    mutant(
        "a slot counts as taken whatever fence its job has now",
        "gates/slots.py",
        "_valid",
        "if fences.get(slot.job_id) == slot.fence}",
        "if slot.job_id in fences}",
        "tests/gates/test_slots.py",
    ),
    mutant(
        "leases above a limit that was lowered do not count",
        "gates/slots.py",
        "FreeSlots.is_full",
        "return self._running >= most",
        "return self._next >= most",
        "tests/gates/test_set_limit.py",
    ),
    mutant(
        "the look for the next job of a key orders by less than its index",
        "gates/opening.py",
        "_one_of_each",
        'order = ("subject", "urgency", "run_at", "job_id")',
        'order = ("urgency", "run_at", "job_id")',
        "tests/gates/test_many_keys.py",
        database="mysql",
    ),
    mutant(
        "one who opens gates does not lock their jobs",
        "gates/opening.py",
        "_lock",
        'rows.select_for_update().values_list("pk", "queue"',
        'rows.values_list("pk", "queue"',
        "tests/races/test_limits.py",
        database="postgres",
    ),
    mutant(
        "a claim believes that it got every slot that it inserted",
        "gates/slots.py",
        "_insert",
        "return {slot.job_id for slot in _read({slot.subject for slot in fresh}, using) if slot in mine}",
        "return {slot.job_id for slot in mine}",
        "tests/races/test_limits.py",
        database="postgres",
    ),
    mutant(
        "jobs that start use no token unless others wait for one",
        "gates/admit.py",
        "_start",
        "if tokens[number] or number in waited:",
        "if number in waited:",
        "tests/gates/test_rates.py",
    ),
    mutant(
        "a bucket is refilled when the clock is set back",
        "gates/buckets.py",
        "draw",
        "ahead = min(max(ahead, 0.0), size * seconds)",
        "ahead = max(ahead, 0.0) if ahead <= size * seconds else 0.0",
        "tests/unit/test_buckets.py",
    ),
    mutant(
        "a bucket grows while nobody uses it",
        "gates/buckets.py",
        "draw",
        "ahead = min(max(ahead, 0.0), size * seconds)",
        "ahead = min(ahead, size * seconds)",
        "tests/unit/test_buckets.py",
    ),
    mutant(
        "a failed probe uses an attempt",
        "gates/breaker.py",
        "_failed",
        "return {*back, probe}, row",
        "return back - {probe}, row",
        "tests/gates/test_breaker.py",
    ),
    mutant(
        "two claims make a probe each",
        "gates/breaker.py",
        "may_probe",
        'list(BreakerState.objects.using(using).filter(pk=dependency).select_for_update().values_list("pk"))',
        "",
        "tests/races/test_limits.py",
        database="postgres",
    ),
    mutant(
        "a pause never ends by itself",
        "gates/rules.py",
        "rules_from",
        "paused = row.mode == FlowRule.Mode.PAUSED and not ended",
        "paused = row.mode == FlowRule.Mode.PAUSED",
        "tests/gates/test_pause.py",
    ),
    mutant(
        "claims of a queue with a limit do not lock its gate",
        "gates/whole_queues.py",
        "_locked",
        ".filter(pk=subject.number).select_for_update()",
        ".filter(pk=subject.number)",
        "tests/races/test_limits.py",
        database="postgres",
    ),
]

MAINTENANCE = [
    mutant(
        "the sweep leaves jobs behind gates with free slots",
        "maintenance/gate_sweep.py",
        "_open_free",
        "opened += open_free(some, using=using)",
        "",
        "tests/gates/test_gate_sweep.py",
    ),
]

MUTANTS = [*GATES, *MAINTENANCE]
