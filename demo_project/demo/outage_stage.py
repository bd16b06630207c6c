"""The last stage of the demo: a payment service is switched off, twice.

The first time its jobs fail, and a redrive with a canary brings them back. The second time they name their dependency,
so its circuit breaker opens, and they wait until the service answers.
"""

import time
import uuid
from collections.abc import Callable

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.db import transaction
from django.db.models import Sum

from demo_project.demo.giving_up import GaveUp, Pace, TimeUp, undisturbed
from demo_project.demo.program import Program
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof
from demo_project.demo.sizes import sized
from demo_project.demo.tables import table
from demo_project.payments.service import PaymentService
from demo_project.payments.tasks import charge
from jobqueue import flow, transitions
from jobqueue.dead_letters import DeadLetters, Redriven, fingerprints, redrives
from jobqueue.models import Job, Redrive
from jobqueue.models.job import JobQuerySet

#: payments while the service is on; how many of them name a card that it does not know
BEFORE, UNKNOWN = 12, 3
#: payments while it is off, and as many with a dependency while it is off again; how many on the slowest machine
OFF, OFF_MIN = 40, 12
CANARY, THREADS = 5, 2
QUEUE, DEPENDENCY = "payments", "payment-service"
#: failures that open its breaker
FAILURES: int = settings.JOBQUEUE["DEPENDENCIES"][DEPENDENCY]["FAILURES"]
KNOWN_CARD, UNKNOWN_CARD = "4242", "0000"
LOOK_SECONDS = 0.02


class OutageStage:
    """One run: pay, switch the service off, group the dead letters, switch it on, redrive; then behind a breaker."""

    def __init__(self, out: OutputWrapper, share: float = 1.0) -> None:
        self.out = out
        self.off = sized(OFF, OFF_MIN, share)
        self.payments = BEFORE + 2 * self.off
        self.run_id = uuid.uuid4().hex[:8]
        self.service = PaymentService({KNOWN_CARD})
        self.seconds = 0.0
        #: the dead letters before the redrive
        self.groups: list[DeadLetters] = []
        #: the most jobs that were retried while the canary was not decided
        self.in_canary = 0
        #: the state of the breaker while the service was off again
        self.breaker = ""
        self._ids: list[int] = []
        self._worker = Program("runworker", QUEUE, "--concurrency", str(THREADS), quietly=("--no-reload", "-v", "0"))

    def work(self) -> None:
        """Run all of it. What an earlier run has left in this queue is discarded first."""
        began = time.monotonic()
        unfinished = (Job.Status.READY, Job.Status.FAILED)
        for job_id in Job.objects.filter(queue=QUEUE, status__in=unfinished).values_list("pk", flat=True):
            transitions.discard(job_id)
        progress, pace = Progress(self.payments, "payments", self.out), Pace(self.payments, "payments")
        progress.say(self._worker.typed)
        try:
            with progress.moving():
                self._fail_and_redrive(progress, pace)
                self._wait_behind_breaker(progress, pace)
        except TimeUp:
            raise GaveUp(self._cause(pace)) from None
        finally:
            with undisturbed():
                self._worker.stop()
                self.service.close()
        self.seconds = time.monotonic() - began

    def _fail_and_redrive(self, progress: Progress, pace: Pace) -> None:
        self._switch(on=True)
        self._worker.start()
        self._pay([UNKNOWN_CARD] * UNKNOWN + [KNOWN_CARD] * (BEFORE - UNKNOWN))
        self._wait(lambda: self._ended() == BEFORE, progress, pace)
        self._switch(on=False)
        progress.say(f"The service is switched off, and {self.off} more payments are enqueued.")
        self._pay([KNOWN_CARD] * self.off)
        self._wait(lambda: self._ended() == BEFORE + self.off, progress, pace)
        self.groups = fingerprints(queue=QUEUE)
        progress.say(f"The dead letters, in groups of the same failure:\n{_table(self.groups)}")
        self._switch(on=True)
        kind = next((group.fingerprint for group in self.groups if group.cause == "dependency"), None)
        if kind is None:
            raise GaveUp("no dead letter has the cause 'dependency', although the service was off")
        words = ("retry", "--fingerprint", kind, "--canary", str(CANARY))
        progress.say(f"The service is switched on.\n$ manage.py jobs {' '.join(words)}")
        call_command("jobs", *words, "--yes", verbosity=0)
        self._wait(lambda: self._redriven() and self._ended() == BEFORE + self.off, progress, pace)

    def _wait_behind_breaker(self, progress: Progress, pace: Pace) -> None:
        self._switch(on=False)
        progress.say(
            f'The service is switched off again, and {self.off} payments with dependency="{DEPENDENCY}" are enqueued.'
        )
        self._pay([KNOWN_CARD] * self.off, dependency=DEPENDENCY)
        # While a probe runs, one job does not wait.
        self._wait(lambda: self._behind_breaker() == self.off and self._breaker_is_open(), progress, pace)
        progress.say(f"The circuit breaker of the service is {self.breaker}: all {self.off} wait.\nIt is switched on.")
        self._switch(on=True)
        self._wait(lambda: self._ended() == self.payments, progress, pace)

    def proofs(self) -> list[Proof]:
        """Each payment that can be paid was paid once, and only the others are dead letters."""
        causes = {str(group.cause): group.count for group in self.groups}
        kinds = {group.fingerprint for group in self.groups if group.fingerprint}
        paid, charged = self.payments - UNKNOWN, self.service.charged
        per_order = [charged.count(order) for order in set(charged)]
        dead = self._jobs().filter(status=Job.Status.FAILED)
        left = f"{dead.filter(cause='data').count()} of {dead.count()}"
        guarded = self._jobs().filter(dependency=DEPENDENCY)
        spent = FAILURES + THREADS
        return [
            Proof("dead letters of the outage, cause dependency", self.off, causes.get("dependency", 0)),
            Proof("dead letters with an unknown card, cause data", UNKNOWN, causes.get("data", 0)),
            Proof("their fingerprints, one per kind of failure", 2, len(kinds)),
            Proof("dead letters retried before the canary had passed", CANARY, self.in_canary),
            Proof("the breaker, while the service was off again", "open", self.breaker),
            Proof(
                f"attempts that {self.off} payments with a dependency used then",
                f"at most {spent}",
                guarded.aggregate(n=Sum("attempts"))["n"],
                at_most=spent,
            ),
            Proof("payments DONE", paid, self._jobs().filter(status=Job.Status.DONE).count()),
            Proof("orders that the service charged", paid, len(per_order)),
            Proof(
                "charges per order, least and most",
                "1 and 1",
                f"{min(per_order, default=0)} and {max(per_order, default=0)}",
            ),
            Proof("dead letters left, all with an unknown card", f"{UNKNOWN} of {UNKNOWN}", left),
        ]

    def _switch(self, *, on: bool) -> None:
        with undisturbed():
            if on:
                self.service.switch_on()
            else:
                self.service.switch_off()

    def _pay(self, cards: list[str], dependency: str | None = None) -> None:
        job = charge.using(dependency=dependency)
        with transaction.atomic():
            for card in cards:
                order = f"{self.run_id}-{len(self._ids)}"
                self._ids.append(int(job.enqueue(order, card, self.service.url).id))

    def _wait(self, done: Callable[[], bool], progress: Progress, pace: Pace) -> None:
        while not done():
            if ended := self._worker.failed():
                raise GaveUp(f"A program ended by itself. {ended}")
            paid = self._jobs().filter(status=Job.Status.DONE).count()
            pace.see(paid)
            progress.show(paid)
            time.sleep(LOOK_SECONDS)

    def _redriven(self) -> bool:
        """Whether the redrive has ended; notes how many jobs it has retried while its canary was not decided."""
        run: Redriven = redrives(limit=1)[0]
        if run.state == "stopped":
            raise GaveUp(f"redrive {run.id} was stopped: {run.reason}")
        if run.state == "canary":
            self.in_canary = max(self.in_canary, run.redriven)
        if run.state == "done":
            # Its row has them too, however short the canary was.
            self.in_canary = max(self.in_canary, len(Redrive.objects.get(pk=run.id).canaries))
        return run.state == "done"

    def _cause(self, pace: Pace) -> str:
        """Kill the worker, and say why payments are left."""
        ended = self._worker.failed()
        self._worker.abort()
        runs = "; ".join(f"redrive {run.id} is {run.state}" for run in redrives(limit=1))
        return " ".join(part for part in (f"{pace.cause()}.", runs, ended) if part)

    def _jobs(self) -> JobQuerySet:
        found: JobQuerySet = Job.objects.filter(pk__in=self._ids)
        return found

    def _behind_breaker(self) -> int:
        waiting = self._jobs().filter(status=Job.Status.READY, wait_reason=f"breaker {DEPENDENCY}")
        return waiting.exclude(gate=0).count()

    def _breaker_is_open(self) -> bool:
        self.breaker = flow.breaker(DEPENDENCY).state
        return self.breaker == "open"

    def _ended(self) -> int:
        return self._jobs().filter(status__in=(Job.Status.DONE, Job.Status.FAILED)).count()


def _table(groups: list[DeadLetters]) -> str:
    rows = [(group.count, str(group.cause), group.error_class, str(group.fingerprint)) for group in groups]
    return table(["jobs", "cause", "exception", "fingerprint"], rows)
