"""python manage.py demo: the whole product in under a minute, with proofs at the end."""

import os
import signal
import sys
import textwrap
import time
from argparse import ArgumentParser
from contextlib import nullcontext
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from demo_project.billing.tasks import CUSTOMERS as CUSTOMERS_BILLED
from demo_project.demo.files_stage import FilesStage
from demo_project.demo.giving_up import GaveUp, TimeUp, start_timer, stop_timer
from demo_project.demo.month_stage import WORKERS, MonthStage
from demo_project.demo.orders_stage import CUSTOMERS, ORDERS, OrdersStage
from demo_project.demo.outage_stage import AFTER, CANARY, GUARDED, OutageStage
from demo_project.demo.own_database import own_database
from demo_project.demo.parcels_stage import PARCELS, PROCESSES, THREADS, ParcelsStage
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof, as_table
from demo_project.demo.verdict import NEXT, gave_up, verdict
from demo_project.packing.tasks import PLACES
from demo_project.serials import race
from demo_project.serials.report import as_table as race_table
from demo_project.serials.report import notes
from demo_project.serials.strategies import STRATEGIES
from jobqueue.cli.arguments import count, duration
from jobqueue.db import vendor_of

STAGES = ("files", "orders", "numbers", "parcels", "outage", "month")
GIVE_UP_AFTER = "240s"
#: half of what race_serials sends
REQUESTS = 2500


class Command(BaseCommand):
    """Exit status 0 only if every proof holds, else 1."""

    help = (
        "Run real jobs and relay real events, kill a worker and a relay, race for serial numbers, limit and pause a "
        "queue, bring the dead letters of an outage back, close a month by a schedule, and prove that nothing was lost "
        "or doubled."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--stage", action="append", choices=STAGES, help="run only this stage; may be repeated")
        parser.add_argument("--orders", type=count(100_000), default=ORDERS, metavar="N", help=f"default {ORDERS}")
        parser.add_argument(
            "--give-up-after", type=duration, default=GIVE_UP_AFTER, metavar="TIME", help=f"default {GIVE_UP_AFTER}"
        )
        parser.add_argument(
            "--in-place", action="store_true", help="use the database of DATABASE_URL instead of a new one beside it"
        )

    def handle(self, *args: Any, **given: Any) -> None:
        # Turn SIGTERM into an exception, so that subprocesses are stopped.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        began = time.monotonic()
        where = nullcontext("the database of DATABASE_URL") if given["in_place"] else own_database()
        with where as place:
            start_timer(given["give_up_after"])
            self._head(f"jobqueue demo on {vendor_of(connection).describe(connection)}, {place}")
            chosen = [stage for stage in STAGES if stage in (given["stage"] or STAGES)]
            proofs: list[Proof] = []
            stage = chosen[0]
            try:
                for number, stage in enumerate(chosen, 1):
                    proofs += self._run(stage, number, given["orders"])
            except (GaveUp, TimeUp) as error:
                stop_timer()
                self._end(proofs, began, gave_up(stage, str(error) or _slow(), time.monotonic() - began, _hint(place)))
                sys.exit(1)
            stop_timer()
        self._end(proofs, began, verdict(chosen, proofs, place))
        if not all(proof.holds for proof in proofs):
            sys.exit(1)
        self.stdout.write("\n" + NEXT)

    def _run(self, stage: str, number: int, orders: int) -> list[Proof]:
        if stage == "files":
            return self._files(number)
        if stage == "orders":
            return self._orders(number, orders)
        if stage == "numbers":
            return self._race(number)
        if stage == "parcels":
            return self._parcels(number)
        return self._outage(number) if stage == "outage" else self._month(number)

    def _end(self, proofs: list[Proof], began: float, told: str) -> None:
        if proofs:
            self._head("What was proved")
            self.stdout.write(as_table(proofs))
            good = sum(proof.holds for proof in proofs)
            self.stdout.write(f"\n{good} of {len(proofs)} proofs hold; {time.monotonic() - began:.0f} s.")
        self.stdout.write("\n" + "\n".join(_wrapped(line) for line in told.splitlines()))

    def _files(self, number: int) -> list[Proof]:
        stage = FilesStage(self.stdout)
        many = len(stage.paths)
        self._head(f"{number}. One job per source file: {many} files, one worker process is killed half-way")
        stage.enqueue()
        stage.work()
        found = stage.recovery()
        self.stdout.write(
            f"{many} files in {stage.seconds:.1f} s. Leases recovered from the killed process: "
            f"{found.charged + found.given_back} ({found.given_back} given back unstarted, {found.charged} charged an "
            f"attempt and run again; {found.reaped} by reap_leases, the others by the worker's own supervisor)."
        )
        return stage.proofs()

    def _orders(self, number: int, orders: int) -> list[Proof]:
        stage = OrdersStage(self.stdout, orders)
        self._head(f"{number}. {orders} orders of {CUSTOMERS} customers, each with an event; the relay is killed")
        stage.place()
        self.stdout.write(
            f"{orders - len(stage.declined)} orders were committed, {len(stage.declined)} were rolled back (card "
            f"declined) after their event was published.\nThe relay sends events as {stage.mailbox}; the warehouse "
            "reads them and books stock, once per order."
        )
        stage.work()
        self.stdout.write(
            f"All delivered and booked in {stage.seconds:.1f} s. {stage.repeats()} messages came twice, because of the "
            "kill; the warehouse's inbox dropped the repeats."
        )
        return stage.proofs()

    def _race(self, number: int) -> list[Proof]:
        shape = race.Shape(requests=REQUESTS)
        self._head(f"{number}. {shape.numbers} serial numbers, {shape.requests} requests, {shape.processes} processes")
        progress = Progress(len(STRATEGIES), "strategies", self.stdout)
        verdicts: list[race.Verdict] = []
        try:
            with progress.moving():
                for found in race.run(list(STRATEGIES), shape):
                    verdicts.append(found)
                    progress.show(len(verdicts))
        except TimeUp:
            raise GaveUp(f"{len(verdicts)} of {len(STRATEGIES)} strategies had run. {_slow()}") from None
        self.stdout.write(race_table(verdicts))
        self.stdout.write(notes(verdicts))
        sold = next(verdict for verdict in verdicts if verdict.strategy == "take")
        return [
            Proof("serial numbers handed out by take", shape.numbers, sold.handed_out),
            Proof("serial numbers issued twice", 0, sold.duplicates),
            Proof("serial numbers lost", 0, sold.unsold),
            Proof("requests that got two numbers", 0, sold.greedy),
        ]

    def _parcels(self, number: int) -> list[Proof]:
        stage = ParcelsStage(self.stdout)
        threads = PROCESSES * THREADS
        self._head(f"{number}. {PARCELS} parcels, {threads} threads, a bench with {PLACES} places; the queue is paused")
        stage.work()
        self.stdout.write(
            f"All packed in {stage.seconds:.1f} s, never more than {PLACES} at once: concurrency_limit={PLACES} of the "
            f"task holds for all {PROCESSES} worker processes together. A pause writes one row, however many jobs wait."
        )
        return stage.proofs()

    def _outage(self, number: int) -> list[Proof]:
        stage = OutageStage(self.stdout)
        self._head(
            f"{number}. A payment service is off: {AFTER} jobs fail, a canary of {CANARY} brings them back; behind a "
            "circuit breaker, jobs wait"
        )
        stage.work()
        self.stdout.write(
            "The canary passed, and the others followed. The payments with an unknown card were left as they are: they "
            "have another fingerprint, and a retry would not help them.\n"
            f"In the second outage a few failures opened the circuit breaker: all {GUARDED} payments waited, and none "
            f"became a dead letter. {stage.seconds:.1f} s in all."
        )
        return stage.proofs()

    def _month(self, number: int) -> list[Proof]:
        stage = MonthStage(self.stdout)
        many = CUSTOMERS_BILLED
        self._head(f"{number}. A schedule closes a month: {many} invoices in a group, a report, a prune")
        stage.work()
        self.stdout.write(
            f"A schedule ticks each second, and {WORKERS} workers fire it, each tick once. The first job made a group "
            f"of {many} jobs, whose callback ran once, after the last of them. When the jobs were a month old, a prune "
            f"deleted them. {stage.seconds:.1f} s in all."
        )
        return stage.proofs()

    def _head(self, text: str) -> None:
        self.stdout.write(f"\n{text}\n{'=' * len(text)}")


def _slow() -> str:
    return f"This machine is too slow now (the load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)."


def _hint(place: str) -> str:
    return (
        f"The rows are in {place}. Try again when the machine is idle, or allow more time: python manage.py demo "
        "--give-up-after 10m"
    )


def _wrapped(line: str) -> str:
    """`line` in a width that fits a terminal; lines that a program wrote stay as they are."""
    return line if line.startswith(" ") else textwrap.fill(line, 110, break_long_words=False, break_on_hyphens=False)
