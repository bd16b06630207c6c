"""The first stage of the demo: one job per source file, a worker, a kill -9, and the proof."""

import json
import time
import uuid
from io import StringIO
from typing import Any, NamedTuple

from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.db import transaction
from django.db.models import Count, F, Max, Min, Sum

from demo_project.demo.giving_up import GaveUp, Pace, TimeUp, undisturbed
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof
from demo_project.demo.sizes import sized
from demo_project.demo.worker import DRAIN_SECONDS, Killed, WorkerCommand
from demo_project.sources.files import Found, all_paths, examine
from demo_project.sources.models import Effect, SourceFile
from demo_project.sources.tasks import read_source
from jobqueue import transitions
from jobqueue.db.clock import UtcNow
from jobqueue.models import Job, JobAttempt
from jobqueue.models.job import JobQuerySet

LOOK_SECONDS = 0.02
#: files of a run on the slowest machine; the next ones, if the worker ends before it can be killed
FILES_MIN, FILES_MORE = 120, 120
#: starts of the worker after which a failed one is not repeated
STARTS_MAX = 3


class Recovery(NamedTuple):
    """What happened to the leases of the killed process."""

    killed: Killed | None
    charged: int
    given_back: int
    reaped: int


class FilesStage:
    """One run: enqueue, work, kill, recover, wait."""

    def __init__(self, out: OutputWrapper, share: float = 1.0) -> None:
        self.out = out
        self.run_id = uuid.uuid4().hex
        known = all_paths()
        many = sized(len(known), FILES_MIN, share)
        # From all parts of the package.
        self.paths = [known[n * len(known) // many] for n in range(many)]
        chosen = set(self.paths)
        self._spare = [path for path in known if path not in chosen]
        self.first_job = 0
        self.killed: Killed | None = None
        self.reaped = 0
        self.seconds = 0.0

    def enqueue(self) -> None:
        """Enqueue one job per file, all in one transaction. Rows and unfinished jobs of an earlier run are deleted."""
        for job_id in Job.objects.ready().filter(queue="sources").values_list("pk", flat=True):
            transitions.cancel(job_id)
        with transaction.atomic():
            Effect.objects.all().delete()
            SourceFile.objects.all().delete()
            self.first_job = self._add(self.paths)

    def _add(self, paths: list[str]) -> int:
        """Enqueue one job per file; the least of their ids."""
        SourceFile.objects.bulk_create([SourceFile(path=path, run=self.run_id) for path in paths], batch_size=200)
        return min(int(read_source.enqueue(path, self.run_id).id) for path in paths)

    def work(self) -> None:
        """Run the worker until every job has ended, and kill one of its processes meanwhile."""
        began = time.monotonic()
        worker, progress = WorkerCommand(), Progress(len(self.paths), "files", self.out)
        pace = Pace(len(self.paths), "files")
        progress.say(worker.typed)
        try:
            with progress.moving():
                worker.start()
                while left := self._left() or self._more(progress):
                    pace.see(len(self.paths) - left)
                    progress.show(pace.done)
                    self._step(worker, progress, left)
                    time.sleep(LOOK_SECONDS)
                pace.see(len(self.paths))
                progress.show(len(self.paths))
            worker.wait(DRAIN_SECONDS)
        except TimeUp:
            raise GaveUp(self._cause(worker, pace)) from None
        finally:
            with undisturbed():
                worker.stop()
        self.seconds = time.monotonic() - began
        for line in worker.warnings():
            progress.say(f"worker: {line}")

    def _cause(self, worker: WorkerCommand, pace: Pace) -> str:
        """Kill the worker, and say why files are left."""
        ended = worker.failed()
        worker.abort()
        pace.see(len(self.paths) - self._left())
        left = self._jobs().filter(status__in=(Job.Status.READY, Job.Status.PROCESSING))
        states = {
            "due": left.due().count(),
            "held by a worker": left.leased().count(),
            "not due yet": left.ready().filter(run_at__gt=UtcNow()).count(),
        }
        jobs = ", ".join(f"{count} {state}" for state, count in states.items() if count)
        error = left.exclude(last_error=None).values_list("last_error", flat=True).first()
        parts = [f"{pace.cause()}. Jobs left: {jobs or 'none'}.", ended or ""]
        if error:
            parts.append(f"One of them failed with: {error.strip().splitlines()[-1]}")
        return " ".join(part for part in parts if part)

    def recovery(self) -> Recovery:
        """Counts from the rows: every claim succeeded, used an attempt, or was released."""
        charged = JobAttempt.objects.filter(job_id__gte=self.first_job, cause="lost").count()
        spare = self._jobs().filter(status=Job.Status.DONE).aggregate(n=Sum(F("fence") - F("attempts") - 1))["n"]
        return Recovery(self.killed, charged, spare or 0, self.reaped)

    def proofs(self) -> list[Proof]:
        """Every file took effect once, no job is left, and the stored values are those of the files."""
        files, mine = len(self.paths), SourceFile.objects.filter(run=self.run_id)
        facts: dict[str, Any] = mine.aggregate(
            least=Min("effects"), most=Max("effects"), lines=Sum("lines"), words=Sum("words")
        )
        direct = {path: examine(path) for path in self.paths}
        stored = {path: Found(*rest) for path, *rest in mine.values_list("path", "lines", "words", "sha256")}
        recovery = self.recovery()
        evidence = Effect.objects.filter(run=self.run_id)
        return [
            Proof("jobs DONE, one per file", files, self._jobs().filter(status=Job.Status.DONE).count()),
            Proof("committed effects, append-only log", files, evidence.count()),
            Proof("files in that log", files, evidence.aggregate(n=Count("path", distinct=True))["n"]),
            Proof("effects per file, least and most", "1 and 1", f"{facts['least']} and {facts['most']}"),
            Proof("lines, computed directly", sum(found.lines for found in direct.values()), facts["lines"]),
            Proof("words, computed directly", sum(found.words for found in direct.values()), facts["words"]),
            Proof("fingerprints that match the files", files, sum(stored.get(p) == f for p, f in direct.items())),
            Proof("worker processes killed by SIGKILL", 1, int(self.killed is not None)),
            Proof("its leases recovered", "at least 1", recovery.charged + recovery.given_back, at_least=1),
            Proof("jobs left READY or PROCESSING", 0, self._left()),
        ]

    def _jobs(self) -> JobQuerySet:
        found: JobQuerySet = Job.objects.filter(queue="sources", pk__gte=self.first_job)
        return found

    def _left(self) -> int:
        return self._jobs().filter(status__in=(Job.Status.READY, Job.Status.PROCESSING)).count()

    def _more(self, progress: Progress) -> int:
        """More files for the worker, which has ended all before it could be killed; how many."""
        more = self._spare[:FILES_MORE]
        if self.killed or not more:
            return 0
        del self._spare[: len(more)]
        with transaction.atomic():
            self._add(more)
        self.paths += more
        progress.total = len(self.paths)
        progress.say(f"All files were done before a process could be killed: {len(more)} more.")
        return len(more)

    def _step(self, worker: WorkerCommand, progress: Progress, left: int) -> None:
        if self.killed is None and 3 * (len(self.paths) - left) >= len(self.paths) and worker.running():
            self.killed = worker.kill_child()
            if self.killed:
                progress.say(f"$ kill -9 {self.killed.pid}    a worker process, which held {self.killed.leases} leases")
                self._reap(progress)
        if worker.failed() and worker.starts >= STARTS_MAX:
            raise GaveUp(f"{worker.starts} starts failed. {worker.failed()}")
        if not worker.running() and (self._jobs().due().exists() or self._jobs().lapsed().exists()):
            # The worker ended while killed jobs waited for their back-off. A service manager would start it again too.
            self._reap(progress)
            worker.start()

    def _reap(self, progress: Progress) -> None:
        answer = StringIO()
        call_command("reap_leases", "--json", stdout=answer)
        found = json.loads(answer.getvalue())
        self.reaped += found["requeued"] + found["dead"]
        progress.say(f"$ manage.py reap_leases: requeued {found['requeued']}, dead-lettered {found['dead']}")
