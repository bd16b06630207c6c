"""The stage of a limit and a pause: many threads, a bench with two places, and a queue that is paused meanwhile."""

import re
import shlex
import time
import uuid
from collections.abc import Callable
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.db import connection, transaction

from demo_project.demo.giving_up import GaveUp, Pace, TimeUp, undisturbed
from demo_project.demo.program import Program
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof
from demo_project.demo.sizes import sized
from demo_project.demo.speed import stretched
from demo_project.packing.bench import PACK_SECONDS, PackingBench
from demo_project.packing.tasks import PLACES, pack
from jobqueue import flow, transitions
from jobqueue.explain import explain_queue
from jobqueue.models import FlowRule, Job
from jobqueue.models.job import JobQuerySet

#: how many there are, and how many on the slowest machine; one of so many is packed before the pause
PARCELS, PARCELS_MIN, BEFORE_OF = 60, 24, 6
#: of a parcel on a slow machine, so that several are at the bench at once there too
PACK_SECONDS_MAX = 0.4
PROCESSES, THREADS = 3, 4
QUEUE, REASON = "packing", "the tape has run out"
#: so long after the commit of a pause nothing starts any more; so long the stage then watches that nothing does
GRACE_SECONDS, WATCH_SECONDS = 1.0, 0.5
LOOK_SECONDS = 0.02


class ParcelsStage:
    """One run: pack with a limit, pause, watch, resume."""

    def __init__(self, out: OutputWrapper, share: float = 1.0) -> None:
        self.out = out
        self.parcels = sized(PARCELS, PARCELS_MIN, share)
        self.run_id = uuid.uuid4().hex[:8]
        self.bench = PackingBench(stretched(PACK_SECONDS, PACK_SECONDS_MAX))
        self.seconds = 0.0
        #: the parcels that waited when the queue was resumed
        self.waited = 0
        #: the tables that the pause has written to, and its rows in job_flow
        self.written: set[str] = set()
        self.rows = 0
        self._paused_at = self._resumed_at = 0.0
        self._ids: list[int] = []
        shape = ("--processes", str(PROCESSES), "--concurrency", str(THREADS))
        self._worker = Program("runworker", QUEUE, *shape, quietly=("--no-reload", "-v", "0"))

    def work(self) -> None:
        """Run all of it. What an earlier run has left in this queue, a pause too, is ended first."""
        began = time.monotonic()
        flow.resume(QUEUE)
        for job_id in Job.objects.ready().filter(queue=QUEUE).values_list("pk", flat=True):
            transitions.cancel(job_id)
        progress, pace = Progress(self.parcels, "parcels", self.out), Pace(self.parcels, "parcels")
        progress.say(self._worker.typed)
        try:
            with progress.moving():
                self._act(progress, pace)
        except TimeUp:
            raise GaveUp(self._cause(pace)) from None
        finally:
            with undisturbed():
                self._worker.stop()
                self.bench.close()
        self.seconds = time.monotonic() - began

    def _act(self, progress: Progress, pace: Pace) -> None:
        with transaction.atomic():
            self._ids = [int(pack.enqueue(f"{self.run_id}-{n}", self.bench.url).id) for n in range(self.parcels)]
        self._worker.start()
        self._wait(lambda: self._done() >= self.parcels // BEFORE_OF, progress, pace)
        with connection.execute_wrapper(self._note):
            self._control("pause", progress, "--reason", REASON)
        self._paused_at = time.monotonic()
        self.rows = FlowRule.objects.filter(queue=QUEUE).count()
        over = self._paused_at + GRACE_SECONDS + WATCH_SECONDS
        self._wait(lambda: time.monotonic() >= over, progress, pace)
        self.waited = self._jobs().filter(status=Job.Status.READY).count()
        progress.say(f"{self.waited} parcels wait. explain_queue(): {explain_queue(QUEUE)[0].text}")
        self._resumed_at = time.monotonic()
        self._control("resume", progress)
        self._wait(lambda: self._done() == self.parcels, progress, pace)

    def _control(self, verb: str, progress: Progress, *options: str) -> None:
        """Do what an operator does, and show the command."""
        words = ("jobs", "queues", verb, QUEUE, *options)
        call_command(*words, stdout=StringIO())
        progress.say(f"$ manage.py {shlex.join(words)}")

    def proofs(self) -> list[Proof]:
        """Never more parcels than places, none late after the pause, and each was packed once."""
        packed = [parcel for parcel, _ in self.bench.packed]
        per_parcel = [packed.count(parcel) for parcel in set(packed)]
        late = [began for _, began in self.bench.packed if self._paused_at + GRACE_SECONDS < began < self._resumed_at]
        # The command writes what it has done to the audit, too.
        wrote = f"{self.rows} of {' and '.join(sorted(self.written - {'job_audit'}))}"
        return [
            Proof("parcels packed at once, the most that the bench saw", PLACES, self.bench.most),
            Proof("rows that the pause of the queue wrote", "1 of job_flow", wrote),
            Proof("parcels that waited until the queue was resumed", "at least 1", self.waited, at_least=1),
            Proof("starts later than 1 s after the commit of the pause", 0, len(late)),
            Proof("parcels DONE", self.parcels, self._done()),
            Proof(
                "times that each was packed, least and most",
                "1 and 1",
                f"{min(per_parcel, default=0)} and {max(per_parcel, default=0)}",
            ),
        ]

    def _note(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        """Note the table of a statement that writes."""
        if found := re.match(r"\W*(?:INSERT\s+(?:IGNORE\s+)?INTO|UPDATE|DELETE\s+FROM|REPLACE\s+INTO)\s+(\S+)", sql):
            self.written.add(found[1].strip('"`'))
        return execute(sql, params, many, context)

    def _wait(self, done: Callable[[], bool], progress: Progress, pace: Pace) -> None:
        while not done():
            if ended := self._worker.failed():
                raise GaveUp(f"A program ended by itself. {ended}")
            packed = self._done()
            pace.see(packed)
            progress.show(packed)
            time.sleep(LOOK_SECONDS)

    def _cause(self, pace: Pace) -> str:
        """Kill the worker, and say why parcels are left."""
        ended = self._worker.failed()
        self._worker.abort()
        reasons = self._jobs().filter(status=Job.Status.READY).values_list("wait_reason", flat=True).distinct()
        waiting = ", ".join(sorted(reason or "their turn" for reason in reasons))
        return " ".join(part for part in (f"{pace.cause()}.", waiting and f"Jobs wait for {waiting}.", ended) if part)

    def _jobs(self) -> JobQuerySet:
        found: JobQuerySet = Job.objects.filter(pk__in=self._ids)
        return found

    def _done(self) -> int:
        return self._jobs().filter(status=Job.Status.DONE).count()
