"""python manage.py demo: the whole product in one to two minutes, with proofs at the end."""

import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from demo_project.demo import speed
from demo_project.demo.files_stage import FilesStage
from demo_project.demo.first_jobs import JOBS, QUIET_SECONDS, first_jobs
from demo_project.demo.giving_up import GaveUp, TimeUp, moved, start_timer, stop_timer
from demo_project.demo.month_stage import WORKERS, MonthStage
from demo_project.demo.numbers_stage import NumbersStage
from demo_project.demo.orders_stage import CUSTOMERS, ORDERS, ORDERS_MIN, OrdersStage
from demo_project.demo.outage_stage import CANARY, OutageStage
from demo_project.demo.own_database import own_database
from demo_project.demo.parcels_stage import PROCESSES, THREADS, ParcelsStage
from demo_project.demo.proof import Proof, as_table
from demo_project.demo.sizes import Plan, sized
from demo_project.demo.tables import wrapped
from demo_project.demo.verdict import NEXT, gave_up, verdict
from demo_project.packing.tasks import PLACES
from jobqueue.cli.arguments import count, duration
from jobqueue.db import vendor_of

STAGES = ("files", "orders", "numbers", "parcels", "outage", "month")


class Command(BaseCommand):
    """Exit status 0 only if every proof holds, else 1."""

    help = (
        "Run real jobs and relay real events, kill a worker and a relay, race for serial numbers, limit and pause a "
        "queue, bring the dead letters of an outage back, close a month by a schedule, and prove that nothing was lost "
        "or doubled. It takes one to two minutes, and up to five on a very busy machine."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--stage", action="append", choices=STAGES, help="run only this stage; may be repeated")
        add("--size", choices=["full", "least"], help="of each stage (default: what fits the speed of the machine)")
        add("--orders", type=count(100_000), metavar="N", help=f"default {ORDERS}, fewer on a slow machine")
        add(
            "--give-up-after", type=duration, metavar="TIME",
            help="end after TIME, whatever is missing; without it the demo gives up only when nothing moves any more",
        )  # fmt: skip
        add("--in-place", action="store_true", help="use the database of DATABASE_URL instead of a new one beside it")

    def handle(self, *args: Any, **given: Any) -> None:
        # Turn SIGTERM into an exception, so that subprocesses are stopped.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        began = time.monotonic()
        where = nullcontext("the database of DATABASE_URL") if given["in_place"] else own_database(self._begin)
        with where as place:
            start_timer(given["give_up_after"])
            if given["in_place"]:
                self._begin(place)
            chosen = [stage for stage in STAGES if stage in (given["stage"] or STAGES)]
            proofs: list[Proof] = []
            stage = chosen[0]
            try:
                plan = None if given["size"] else self._plan(chosen, began)
                for number, stage in enumerate(chosen, 1):
                    proofs += self._run(stage, number, plan, given)
            except (GaveUp, TimeUp) as error:
                stop_timer()
                hint = _hint(place, limited=given["give_up_after"] is not None)
                self._end(proofs, began, gave_up(stage, str(error) or _slow(), time.monotonic() - began, hint))
                sys.exit(1)
            stop_timer()
        self._end(proofs, began, verdict(chosen, proofs, place))
        if not all(proof.holds for proof in proofs):
            sys.exit(1)
        self._say("\n" + NEXT)

    def _begin(self, place: str) -> None:
        self._say(f"On {vendor_of(connection).describe(connection)}: {place}")

    def _plan(self, chosen: list[str], began: float) -> Plan:
        """Measure the machine, and say what follows from it for the sizes of the stages."""
        seconds = first_jobs(self.stdout)
        # A worker that cannot start: the first stage says why.
        speed.note(speed.patient(1.0) if seconds is None else seconds / QUIET_SECONDS)
        plan = Plan(chosen, speed.measured(), began=began)
        if seconds is not None:
            size = "have their full size" if plan.begin() == 1.0 else "are smaller, to end in time"
            self._say(
                f"A worker took {seconds:.1f} s to start and do {JOBS} jobs ({QUIET_SECONDS} s on two quiet cores): "
                f"the stages {size}."
            )
        return plan

    def _run(self, stage: str, number: int, plan: Plan | None, given: dict[str, Any]) -> list[Proof]:
        share = plan.begin() if plan else float(given["size"] == "full")
        if stage == "orders":
            proofs = self._orders(number, given["orders"] or sized(ORDERS, ORDERS_MIN, share))
        elif stage == "numbers":
            proofs = self._numbers(number, share, plan.again if plan else None)
        else:
            stages = {"files": self._files, "parcels": self._parcels, "outage": self._outage, "month": self._month}
            proofs = stages[stage](number, share)
        if plan:
            plan.end()
            speed.note(plan.slowness)
        return proofs

    def _end(self, proofs: list[Proof], began: float, told: str) -> None:
        if proofs:
            self._head("What was proved")
            self._say(as_table(proofs))
            good = sum(proof.holds for proof in proofs)
            self._say(f"\n{good} of {len(proofs)} proofs hold; {time.monotonic() - began:.0f} s.")
        self._say("\n" + told)

    def _files(self, number: int, share: float) -> list[Proof]:
        stage = FilesStage(self.stdout, share)
        self._head(f"{number}. One job per source file: {len(stage.paths)} files; a worker process is killed")
        stage.enqueue()
        stage.work()
        found = stage.recovery()
        held = found.charged + found.given_back
        self._say(
            f"{len(stage.paths)} files in {stage.seconds:.1f} s. The worker recovered the leases of {held} jobs: "
            f"{found.given_back} had not begun and were given back; {found.charged} had begun, used an attempt and "
            "ran again."
        )
        return stage.proofs()

    def _orders(self, number: int, orders: int) -> list[Proof]:
        stage = OrdersStage(self.stdout, orders)
        self._head(f"{number}. {orders} orders of {CUSTOMERS} customers, each with an event; the relay is killed")
        stage.place()
        self._say(
            f"{orders - len(stage.declined)} orders were committed. {len(stage.declined)} were rolled back after their "
            f"event was published, because the card was declined.\nThe relay sends events as {stage.mailbox}. The "
            "warehouse reads them and books stock, once per order."
        )
        stage.work()
        self._say(
            f"All were delivered and booked in {stage.seconds:.1f} s. Messages that came twice, because of the "
            f"kill: {stage.repeats()}. The inbox of the warehouse dropped the repeats."
        )
        return stage.proofs()

    def _numbers(self, number: int, share: float, again: Callable[[float], float] | None) -> list[Proof]:
        stage = NumbersStage(self.stdout, share, again)
        shape = stage.shape
        self._head(
            f"{number}. {shape.processes} processes sell {shape.numbers} serial numbers to {shape.requests} requests"
        )
        stage.work()
        return stage.proofs()

    def _parcels(self, number: int, share: float) -> list[Proof]:
        stage = ParcelsStage(self.stdout, share)
        threads = PROCESSES * THREADS
        self._head(
            f"{number}. {stage.parcels} parcels, {threads} threads, a bench with {PLACES} places; the queue is paused"
        )
        stage.work()
        self._say(
            f"All were packed in {stage.seconds:.1f} s, never more than {PLACES} at once: the task's "
            f"concurrency_limit={PLACES} holds for all {PROCESSES} worker processes together. A pause writes one row, "
            "however many jobs wait."
        )
        return stage.proofs()

    def _outage(self, number: int, share: float) -> list[Proof]:
        stage = OutageStage(self.stdout, share)
        self._head(f"{number}. A payment service is off: {stage.off} jobs fail; a canary of {CANARY} brings them back")
        stage.work()
        self._say(
            "The canary passed, and the others followed. The payments with an unknown card were left as they are: they "
            "have another fingerprint, and a retry would not help them.\n"
            f"In the second outage a few failures opened the circuit breaker: all {stage.off} payments waited, and "
            f"none became a dead letter. Both took {stage.seconds:.1f} s."
        )
        return stage.proofs()

    def _month(self, number: int, share: float) -> list[Proof]:
        stage = MonthStage(self.stdout, share)
        many = stage.customers
        self._head(f"{number}. A schedule closes a month: {many} invoices in a group, a report, a prune")
        stage.work()
        self._say(
            f"A schedule ticked every {stage.every}, and {WORKERS} workers fired it, each tick once. The first job "
            f"made a group of {many} jobs, whose callback ran once, after the last of them. Then their times were set "
            f"back by a month, and a prune deleted them. It took {stage.seconds:.1f} s."
        )
        return stage.proofs()

    def _head(self, text: str) -> None:
        self._say(f"\n{text}\n{'=' * len(text)}")

    def _say(self, text: str) -> None:
        """Write it at once, also into a pipe."""
        moved()
        self.stdout.write("\n".join(wrapped(line) for line in text.splitlines()))
        self.stdout.flush()


def _slow() -> str:
    return f"This machine is too slow now (the load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)."


def _hint(place: str, *, limited: bool) -> str:
    what = (
        "Allow more time, or leave --give-up-after away."
        if limited
        else "Try again when the machine is less busy. If that ends in the same way, this is a bug: please report it "
        "with all lines above."
    )
    return f"The rows are in {place}. {what}"
