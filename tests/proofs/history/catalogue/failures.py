"""What failed and what becomes of it: causes, fingerprints, redrives of dead letters, bulk verbs."""

from __future__ import annotations

from tests.proofs.history.catalogue.mutant import mutant

FAILURES = [
    mutant(
        "the fingerprint has the outermost function of the project",
        "failures/grouping.py",
        "_place",
        "if issubclass(type(error), RecursionError):",
        "if found is not None:",
        "tests/failures/test_fingerprints.py",
    ),
    mutant(
        "numbers make another fingerprint of the same failure",
        "failures/grouping.py",
        "_plain",
        'values.sub("#", read)',
        "read",
        "tests/failures/test_fingerprints.py",
    ),
    mutant(
        "what an error was raised from counts although it is suppressed",
        "failures/causes.py",
        "_chain",
        "if before is not None or _SUPPRESSED.__get__(found) else",
        "if before is not None else",
        "tests/failures/test_chains.py",
    ),
    mutant(
        "a lock wait and a deadlock of MySQL are errors of the data, and are not retried",
        "failures/database.py",
        "_MYSQL_RESOURCE",
        "1205, 1213, 1206, 1020",
        "1206, 1020",
        "tests/failures/test_databases.py",
    ),
    mutant(
        "the beginning of an SQLSTATE wins over the whole of it",
        "failures/database.py",
        "_by_sqlstate",
        "range(len(state), 1, -1)",
        "range(2, len(state) + 1)",
        "tests/failures/test_databases.py",
    ),
    mutant(
        "each command that fails counts as one that was killed",
        "failures/system.py",
        "by_exit_status",
        "status < 0",
        "status != 0",
        "tests/failures/test_system.py",
    ),
    mutant(
        "of a long error the end is cut off, which names it",
        "failures/text.py",
        "storable",
        "raw[:head] + note + raw[-tail:]",
        "raw[: head + tail] + note",
        "tests/unit/test_failures.py",
    ),
]

DEAD_LETTERS = [
    mutant(
        "a redrive retries jobs that failed again since it was recorded",
        "dead_letters/stepping.py",
        "_is_ours",
        "job.finished_at is None or job.finished_at <= run.created_at",
        "True",
        "tests/dead_letters/test_redrive.py",
    ),
    mutant(
        "a redrive passes over a job that is locked, and later ones of its key run before it",
        "dead_letters/stepping.py",
        "_lock",
        "if end is None or job_id < end}",
        "if end is None or job_id in found}",
        "tests/dead_letters/test_redriver.py",
        database="postgres",
    ),
    mutant(
        "the rate of a redrive counts a job that is not allowed yet",
        "dead_letters/stepping.py",
        "_allowed",
        "math.floor",
        "math.ceil",
        "tests/dead_letters/test_redrive.py",
    ),
    mutant(
        "a canary goes on although a job of it failed its attempt",
        "dead_letters/canary.py",
        "_failure",
        "row.attempts > before or (row.status",
        "(row.status",
        "tests/dead_letters/test_redrive.py",
    ),
    mutant(
        "a canary that nobody ran counts as passed",
        "dead_letters/canary.py",
        "verdict_of",
        '"" if passed else "no job',
        '"" if passed or canaries else "no job',
        "tests/dead_letters/test_redrive.py",
    ),
    mutant(
        "a portion of ids leaves out the dead letters behind it",
        "dead_letters/filtering.py",
        "next_ids",
        "return found[:most], found[most - 1]",
        "return found[:most], read[-1][0]",
        "tests/dead_letters/test_redrive.py",
    ),
    mutant(
        "a step that is under way goes on after stop()",
        "dead_letters/recording.py",
        "stop",
        'due_at=None, steps=F("steps") + 1,',
        "due_at=None,",
        "tests/dead_letters/test_redrive.py",
    ),
]

BULK_VERBS = [
    mutant(
        "a bulk retry brings jobs back that ended since it was recorded",
        "bulk_verbs/filtering.py",
        "_QUIET",
        'AuditEvent.Verb.RETRY: ("finished_at", "last_started_at")',
        'AuditEvent.Verb.RETRY: ("last_started_at",)',
        "tests/races/test_bulk_verbs.py",
    ),
    mutant(
        "a held job that began again since is run again by a bulk retry",
        "bulk_verbs/filtering.py",
        "_QUIET",
        'AuditEvent.Verb.RETRY: ("finished_at", "last_started_at")',
        'AuditEvent.Verb.RETRY: ("finished_at",)',
        "tests/races/test_bulk_verbs.py",
    ),
    mutant(
        "jobs that run well count as those whose lease ran out",
        "bulk_verbs/filtering.py",
        "_STATES",
        '"expired": (Job.Status.PROCESSING, Q(lock_until__lt=UtcNow()))',
        '"expired": (Job.Status.PROCESSING, Q())',
        "tests/bulk_verbs/test_filtering.py",
    ),
    mutant(
        "one protected job keeps all of its chunk from being deleted",
        "bulk_verbs/changing.py",
        "_delete",
        "gone += sum(delete_job(job_id, using=using) for job_id in jobs)",
        "continue",
        "tests/bulk_verbs/test_carrying_out.py",
    ),
    mutant(
        "jobs that are added after a bulk action was recorded are changed too",
        "bulk_verbs/recording.py",
        "record",
        "newest if until_id is None else min(until_id, newest)",
        "2**62 if until_id is None else until_id",
        "tests/bulk_verbs/test_carrying_out.py",
    ),
]

MUTANTS = [*FAILURES, *DEAD_LETTERS, *BULK_VERBS]
