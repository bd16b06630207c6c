"""What `make serve` shows: 200 jobs of five tasks, as a worker would have left them in the last hour, and a redrive.

One queue is paused, and one has a limit.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from demo_project.demo import tasks
from demo_project.demo.people import USER
from jobqueue import dead_letters, flow, transitions
from jobqueue.db.clock import read_now
from jobqueue.models import Job, JobAttempt, Redrive
from jobqueue.testing import expire_lease

JOBS, WINDOW_SECONDS = 200, 3600
WORKERS = ("web-1:211:5f0c2a9e/1.1", "web-2:198:b1d74c03/1.1")
_TASKS = (tasks.send_receipt, tasks.charge_card, tasks.resize_picture, tasks.import_prices, tasks.sales_report)
#: how many jobs of each task ended, in the order of _TASKS; the rest of JOBS wait for the worker
_SHARES = (84, 48, 30, 14, 10)
#: seconds after which a failed attempt was repeated
_BACKOFF = (5, 11, 19, 41)
#: jobs that the redrive retries first
CANARY = 2
PAUSED, LIMITED = "reports", "imports"


class Sample(NamedTuple):
    """A job: its task, its arguments, and what happens to it besides running."""

    task: Any
    args: tuple[Any, ...]
    fate: str = ""  # canceled or lost: as the names of states and causes say


def replace_samples() -> int:
    """Delete earlier samples and make new ones. Returns the number of jobs. Call it while no worker runs."""
    names = [task.module_path for task in _TASKS]
    old = Job.objects.filter(task__in=names).exclude(status=Job.Status.PROCESSING)
    JobAttempt.objects.filter(job_id__in=list(old.values_list("pk", flat=True))).delete()
    old.delete()
    # Those of earlier samples: the filters of a redrive are JSON.
    earlier = [run.pk for run in Redrive.objects.all() if run.filters.get("task") in names]
    Redrive.objects.filter(pk__in=earlier).delete()
    # The samples are claimed below, also those of queues that earlier samples have left paused or limited.
    flow.resume(PAUSED)
    flow.clear_limit(LIMITED)
    dice = random.Random(16)
    ended = list(_ended(dice))
    now = read_now("default")
    for place, sample in enumerate(ended):
        # From an hour ago until two minutes ago; the ids of jobs follow their age.
        age = WINDOW_SECONDS - (WINDOW_SECONDS - 120) * place / len(ended)
        _make(sample, now - timedelta(seconds=age), dice)
    waiting = list(_waiting(now))
    for task, args in waiting:
        task.enqueue(*args)
    # Their mail server still does not answer, so the worker stops this redrive when its canary has failed.
    dead_letters.redrive(task=tasks.send_receipt.module_path, cause="dependency", canary=CANARY)
    flow.pause(PAUSED, reason="the books of the month are being closed", by=USER)
    flow.set_limit(LIMITED, concurrency=1)
    return len(ended) + len(waiting)


def _ended(dice: random.Random) -> Iterator[Sample]:
    kinds = [kind for kind, share in enumerate(_SHARES) for _ in range(share)]
    dice.shuffle(kinds)
    for number, kind in enumerate(kinds):
        fate = {40: "lost", 77: "canceled", 120: "canceled", 151: "lost"}.get(number, "")
        yield Sample(_TASKS[kind], _arguments(kind, 7000 + number, dice), fate)


def _arguments(kind: int, order: int, dice: random.Random) -> tuple[Any, ...]:
    bad = dice.random() < (0.05, 0.08, 0.2, 0.2, 0.1)[kind]
    if kind == 0:
        return order, f"customer-{dice.randrange(90)}@{'slow' if bad else 'mail'}.example"
    if kind == 1:
        return order, dice.randrange(51_000, 190_000) if bad else dice.randrange(900, 40_000)
    if kind == 2:
        huge, page = (f"lamp-{order}.png", 18_000, 12_000), (f"lamp-{order}.html", 0, 0)
        return dice.choice((huge, page)) if bad else (f"lamp-{order}.jpg", 3000, dice.randrange(1800, 2400))
    if kind == 3:
        return "broken-lamps" if bad else dice.choice(("bright", "lumen", "sol")), dice.randrange(200, 4000)
    return (
        f"2026-{dice.randrange(1, 13):02d}-{dice.randrange(1, 28):02d}",
        0 if bad else dice.randrange(40, 90),
        250_000,
    )


def _waiting(now: datetime) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Jobs for the worker: some that are due later, one that runs for a while, some that are due, two that fail.

    The admin lists the newest jobs first, so those that the reader should see come last.
    """
    for minutes in (2, 5, 10, 15, 30, 60, 120):
        at = now + timedelta(minutes=minutes)
        yield tasks.sales_report.using(run_after=at), (f"{at:%Y-%m-%d}", 12 * minutes, 250_000)
    yield tasks.import_prices, ("lumen", 5000, 90)
    for n in range(4):
        yield tasks.send_receipt, (7300 + n, f"customer-{n}@mail.example")
    yield tasks.send_receipt, (7304, "customer-4@slow.example")
    yield tasks.charge_card, (7305, 64_900)


def _make(sample: Sample, born: datetime, dice: random.Random) -> None:
    """Enqueue a job and do with it what a worker does; then date it back to `born`."""
    job_id = int(sample.task.enqueue(*sample.args).id)
    began = born + timedelta(milliseconds=dice.randrange(4, 160))
    if sample.fate == "canceled":
        transitions.cancel(job_id)
    starts = []
    while sample.fate != "canceled" and _attempt(sample, job_id, lost=sample.fate == "lost" and not starts):
        starts.append(began)
        began += timedelta(seconds=_BACKOFF[min(len(starts), len(_BACKOFF)) - 1] * dice.uniform(0.8, 1.2))
    _date_back(job_id, born, starts, timedelta(milliseconds=dice.randrange(20, 900)))


def _attempt(sample: Sample, job_id: int, *, lost: bool) -> bool:
    """Run one attempt, if the job is due; False if it has ended."""
    leases = transitions.claim(sample.task.queue_name, worker=WORKERS[job_id % len(WORKERS)])
    lease = next((lease for lease in leases if lease.job_id == job_id), None)
    if lease is None:
        return False
    if lost:
        expire_lease(lease)
        transitions.reap()
        return True
    try:
        result = sample.task.func(*sample.args)
    except Exception as error:
        transitions.fail(lease, error=error, delay_seconds=0)
    else:
        transitions.ack(lease, result=result)
    return True


def _date_back(job_id: int, born: datetime, starts: Sequence[datetime], took: timedelta) -> None:
    end = (starts[-1] if starts else born + timedelta(seconds=20)) + took
    times: dict[str, Any] = {"created_at": born, "updated_at": end, "finished_at": end}
    if starts:
        times |= {"run_at": starts[-1], "last_started_at": starts[-1]}
    Job.objects.filter(pk=job_id).update(**times)
    for attempt, start in zip(JobAttempt.objects.filter(job_id=job_id).order_by("pk"), starts, strict=False):
        JobAttempt.objects.filter(pk=attempt.pk).update(started_at=start, ended_at=start + took)
