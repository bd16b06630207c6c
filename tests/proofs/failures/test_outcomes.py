"""How a run ends, in status, attempts, history, log and counts, whichever kind of job it is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest
from django.db import transaction

from jobqueue import enqueue
from jobqueue.models import Job, JobAttempt
from tests.factories import seconds_from_now
from tests.marks import committed
from tests.patience import patient
from tests.proofs.running import wait_for
from tests.proofs.test_probes import free_port, get

pytestmark = [committed, pytest.mark.timeout(600)]

COUNTERS = ("ended", "failed", "snoozed", "discarded")


@dataclass(frozen=True)
class Expected:
    """What a run leaves behind. `wait`: seconds until it is due again."""

    status: str
    attempts: int
    history: str
    log: str
    counts: dict[str, int]
    wait_reason: str | None = None
    wait: int = 0


LOST = "lost, JobLost"
#: of the worker's line about the process
CHARGED = "1 job charged with an attempt"
#: the line about the job, then the one about the process
DIED = f"lost, {CHARGED}"
EXPECTED = {
    "Retry": Expected("READY", 1, "unknown, Retry", "retry", {"ended": 1, "failed": 1}, wait=1800),
    "Snooze": Expected("READY", 0, "snoozed, Snooze", "snoozed", {"ended": 1, "snoozed": 1}, "snoozed", 3600),
    "Discard": Expected("CANCELED", 0, "discarded, Discard", "discarded", {"ended": 1, "discarded": 1}),
    "crash, on_crash=retry": Expected("DONE", 1, LOST, f"{DIED}, ok", {"ended": 2, "failed": 1}),
    "crash, on_crash=fail": Expected("FAILED", 1, LOST, DIED, {"ended": 1, "failed": 1}),
    "crash, on_crash=hold": Expected("READY", 1, LOST, DIED, {"ended": 1, "failed": 1}, "held"),
}


def in_a_task(plain, fails, is_held, how) -> int:
    """A job of the task that has this on_crash."""
    chosen = {"fail": fails, "hold": is_held}.get(how.rpartition("=")[2], plain)
    return int(chosen.enqueue(how.partition(",")[0]).id)


def in_a_batch(queue, how) -> int:
    """A row of a batch handler; its on_crash stands where enqueue() stores that of a task."""
    with transaction.atomic():
        job_id = enqueue(queue, {"how": how.partition(",")[0]}, max_attempts=3)
        if "=" in how:
            Job.objects.filter(pk=job_id).update(options={"on_crash": how.rpartition("=")[2]})
    return job_id


def kinds(jobs) -> dict[str, Callable[[str], int]]:
    """Kind of job -> the function that enqueues one that ends in this way."""
    coroutines = (jobs.ends_as_a_coroutine, jobs.ends_or_fails_as_a_coroutine, jobs.ends_or_is_held_as_a_coroutine)
    return {
        "thread": partial(in_a_task, jobs.ends, jobs.ends_or_fails, jobs.ends_or_is_held),
        "coroutine": partial(in_a_task, *coroutines),
        "batch": partial(in_a_batch, jobs.BATCH),
    }


def counted(port) -> dict[str, int]:
    """The counters of the worker."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patient(20)) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: int(float(values[f"jobqueue_worker_jobs_{name}_total"])) for name in COUNTERS}


def words_of(worker, seen, job_id) -> list[str]:
    """What the worker's log says of a job, after its first `seen` characters."""
    found = []
    for line in worker.output()[seen:].splitlines():
        record = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if CHARGED in record.get("message", ""):
            found.append(CHARGED)
        elif record.get("job_id") == job_id and "event" in record:
            found.append(record["event"])
    return found


def left_behind(worker, port, add, how, wanted):
    """What a new job that ends like this leaves, once it is what is wanted; else what it is when patience has ended."""
    before, seen = counted(port), len(worker.output())
    job_id = add(how)

    def look():
        job = Job.objects.get(pk=job_id)
        tries = JobAttempt.objects.filter(job_id=job_id).values_list("cause", "error_class")
        counts = {name: count - before[name] for name, count in counted(port).items() if count != before[name]}
        reason = (job.wait_reason or "").partition(":")[0]
        wait = seconds_from_now(job.run_at) if wanted.wait else 0
        return Expected(
            Job.Status(job.status).name,
            job.attempts,
            "; ".join(f"{cause}, {kind.rpartition('.')[2]}" for cause, kind in tries),
            ", ".join(words_of(worker, seen, job_id)),
            counts,
            None if reason.startswith("retry") else reason or None,
            wanted.wait if wanted.wait - patient(2) < wait <= wanted.wait else round(wait),
        )

    with suppress(AssertionError):
        wait_for(lambda: look() == wanted, 2)
    return look()


def test_each_end_of_a_run_is_its_own_in_every_place(run_worker, jobs, full, row):
    """What a run leaves in the job's row, its history, the log and the counts of a worker, by its end and kind."""
    port = free_port()
    worker = run_worker("--probe-port", str(port), "--log-format", "json", "--lease", "60s", "--processes", "3")
    wait_for(lambda: get(port, "/ready")[0] == 200, 30, "readiness")
    wrong = {}
    for number, (how, wanted) in enumerate(EXPECTED.items()):
        for place, (kind, add) in enumerate(kinds(jobs).items()):
            if not full and "crash" in how and place != number % 3:
                # A process has to be started after each.
                continue
            found = left_behind(worker, port, add, how, wanted)
            if found != wanted:
                wrong[f"{how} in a {kind}"] = found
            row(
                end=how,
                kind=kind,
                status=found.status,
                attempts=found.attempts,
                waits=found.wait_reason or (f"{found.wait} s" if found.wait else "-"),
                history=found.history,
                log=found.log,
                counts=", ".join(f"{name} {count}" for name, count in found.counts.items()),
            )
    assert wrong == {}
    assert worker.stop() == 0
