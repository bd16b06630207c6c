"""The stage of a schedule, a group and a prune: a month is closed and reported, and its jobs are deleted when old."""

import json
import os
import shlex
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING

from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.db.models import F

from demo_project.billing.tasks import CUSTOMERS, book
from demo_project.demo.giving_up import GaveUp, Pace, TimeUp, undisturbed
from demo_project.demo.program import Program
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof
from demo_project.demo.sizes import sized
from demo_project.demo.speed import measured
from jobqueue.models import Job, Schedule, ScheduleTick
from jobqueue.models.job import JobQuerySet

if TYPE_CHECKING:
    from django.db.models import QuerySet

QUEUE, SCHEDULE, MONTH_VARIABLE, CUSTOMERS_VARIABLE = "billing", "month end", "DEMO_MONTH", "DEMO_CUSTOMERS"
#: on the slowest machine
CUSTOMERS_MIN = 20
WORKERS, TICKS = 2, 2
LOOK_SECONDS = 0.05


class MonthStage:
    """One run: two workers fire a schedule and run its jobs; then the jobs grow old, and are deleted."""

    def __init__(self, out: OutputWrapper, share: float = 1.0) -> None:
        self.out = out
        self.customers = sized(CUSTOMERS, CUSTOMERS_MIN, share)
        self.month = uuid.uuid4().hex[:8]
        self.seconds = 0.0
        #: what the dry run of the prune found, and what the prune deleted
        self.found = self.deleted = 0
        self._first_id = 0
        self._ticks: list[int | None] = []
        shape = ("--processes", "1", "--concurrency", "4")
        self._workers = [
            Program("runworker", QUEUE, *shape, quietly=("--no-reload", "-v", "0")) for _ in range(WORKERS)
        ]

    def work(self) -> None:
        """Run all of it."""
        began = time.monotonic()
        self._first_id = Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        progress, pace = Progress(self.customers, "invoices", self.out), Pace(self.customers, "invoices")
        progress.say(f"{self._workers[0].typed}  ({WORKERS} times)")
        try:
            with progress.moving():
                self._close_month(progress, pace)
        except TimeUp:
            raise GaveUp(self._cause(pace)) from None
        finally:
            with undisturbed():
                for worker in self._workers:
                    worker.stop()
        self._ticks = list(self._decided().values_list("job_id", flat=True))
        self._prune(progress)
        self.seconds = time.monotonic() - began

    def _close_month(self, progress: Progress, pace: Pace) -> None:
        # Only these workers have the schedule: see SCHEDULES in the settings.
        os.environ |= {MONTH_VARIABLE: self.month, CUSTOMERS_VARIABLE: str(self.customers)}
        try:
            for worker in self._workers:
                worker.start()
        finally:
            del os.environ[MONTH_VARIABLE], os.environ[CUSTOMERS_VARIABLE]
        self._wait(lambda: any(line.startswith("report") for line in self.lines()), progress, pace)
        self._wait(lambda: self._decided().count() >= TICKS and not self._jobs().ready().exists(), progress, pace)

    def _prune(self, progress: Progress) -> None:
        """Delete the jobs as an operator does, and show the commands."""
        # As if they had ended a month ago.
        age = timedelta(days=30)
        ended = self._jobs().filter(status=Job.Status.DONE)
        ended.update(run_at=F("run_at") - age, finished_at=F("finished_at") - age, updated_at=F("updated_at") - age)
        self.found = self._pruned("--dry-run", progress)
        self.deleted = self._pruned("--yes", progress)

    def _pruned(self, option: str, progress: Progress) -> int:
        words = ("jobs", "prune", "--queue", QUEUE, "--state", "done=7d", option)
        out = StringIO()
        call_command(*words, "--json", stdout=out)
        progress.say(f"$ manage.py {shlex.join(words)}")
        return sum(part["jobs"] for part in json.loads(out.getvalue())["jobs"])

    @property
    def every(self) -> str:
        """The time between two ticks, in words."""
        seconds = round(min(measured(), 2))
        return "second" if seconds == 1 else f"{seconds} s"

    def proofs(self) -> list[Proof]:
        """Each tick added one job, each invoice was written once and before the report, and old jobs are gone."""
        lines = self.lines()
        invoices = [line for line in lines if line.startswith("invoice")]
        reports = [line for line in lines if line.startswith("report")]
        added = len({job_id for job_id in self._ticks if job_id is not None})
        return [
            Proof(
                f"ticks of the schedule, fired by {WORKERS} workers",
                f"at least {TICKS}",
                len(self._ticks),
                at_least=TICKS,
            ),
            Proof("ticks that did not add exactly one job", 0, len(self._ticks) - added),
            Proof("invoices written", self.customers, len(invoices)),
            Proof("customers invoiced twice", 0, len(invoices) - len(set(invoices))),
            Proof("what the callback of the group has written", f"report of {self.customers}", ", ".join(reports)),
            Proof(
                "invoices written after the report", 0, len(lines) - 1 - lines.index(reports[0]) if reports else None
            ),
            Proof("jobs that the prune has deleted, as its dry run said", self.found, self.deleted),
            # A tick that came while the workers stopped has added a job that waits.
            Proof("jobs DONE that are left", 0, self._jobs().filter(status=Job.Status.DONE).count()),
        ]

    def lines(self) -> list[str]:
        """What the jobs have written, in order."""
        found = book(self.month)
        return found.read_text().splitlines() if found.exists() else []

    def _wait(self, done: Callable[[], bool], progress: Progress, pace: Pace) -> None:
        while not done():
            for worker in self._workers:
                if ended := worker.failed():
                    raise GaveUp(f"A program ended by itself. {ended}")
            written = len(self.lines())
            pace.see(written)
            progress.show(min(written, self.customers))
            time.sleep(LOOK_SECONDS)

    def _cause(self, pace: Pace) -> str:
        """Kill the workers, and say how far they came."""
        ended = [worker.failed() for worker in self._workers]
        for worker in self._workers:
            worker.abort()
        ticks = f"The schedule has fired {self._decided().count()} times."
        return " ".join([f"{pace.cause()}.", ticks, *filter(None, ended)])

    def _decided(self) -> "QuerySet[ScheduleTick]":
        """The ticks of this run that have added a job."""
        ids = Schedule.objects.filter(name=SCHEDULE).values("pk")
        fired = ScheduleTick.objects.filter(schedule_id__in=ids, outcome=ScheduleTick.Outcome.FIRED)
        return fired.filter(job_id__gt=self._first_id)

    def _jobs(self) -> JobQuerySet:
        found: JobQuerySet = Job.objects.filter(queue=QUEUE, pk__gt=self._first_id)
        return found
