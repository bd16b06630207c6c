"""python manage.py demo: the whole product in under a minute, with proofs at the end."""

import signal
import sys
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from demo_project.demo.files_stage import FilesStage
from demo_project.demo.orders_stage import CUSTOMERS, ORDERS, OrdersStage
from demo_project.demo.proof import Proof, as_table
from demo_project.serials import race
from demo_project.serials.report import as_table as race_table
from demo_project.serials.report import notes
from demo_project.serials.strategies import STRATEGIES
from jobqueue.cli.arguments import count
from jobqueue.db import vendor_of

STAGES = ("files", "orders", "numbers")


class Command(BaseCommand):
    """Exit status 0 only if every proof holds, else 1."""

    help = (
        "Run real jobs and relay real events, kill a worker and a relay, race for serial numbers, and prove "
        "that nothing was lost or doubled."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--stage", action="append", choices=STAGES, help="run only this stage; may be repeated")
        parser.add_argument("--orders", type=count(100_000), default=ORDERS, metavar="N", help=f"default {ORDERS}")

    def handle(self, *args: Any, **given: Any) -> None:
        # Turn SIGTERM into an exception, so that subprocesses are stopped.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        began = time.monotonic()
        self._head(f"jobqueue demo on {vendor_of(connection).describe(connection)}")
        proofs: list[Proof] = []
        chosen = [stage for stage in STAGES if stage in (given["stage"] or STAGES)]
        for place, stage in enumerate(chosen, 1):
            run = {"files": self._files, "orders": lambda n: self._orders(n, given["orders"]), "numbers": self._race}
            proofs += run[stage](place)
        self._head("What was proved")
        self.stdout.write(as_table(proofs))
        failed = sum(not proof.holds for proof in proofs)
        seconds = time.monotonic() - began
        self.stdout.write(f"\n{len(proofs) - failed} of {len(proofs)} proofs hold; {seconds:.0f} s.")
        if failed:
            sys.exit(1)

    def _files(self, place: int) -> list[Proof]:
        stage = FilesStage(self.stdout)
        self._head(f"{place}. One job per source file: {len(stage.paths)} files, one worker process is killed half-way")
        stage.enqueue()
        stage.work()
        found = stage.recovery()
        self.stdout.write(
            f"{len(stage.paths)} files in {stage.seconds:.1f} s. Leases recovered from the killed process: "
            f"{found.charged + found.given_back} ({found.given_back} given back unstarted, {found.charged} charged an "
            f"attempt and run again; {found.reaped} by reap_leases, the others by the worker's own supervisor)."
        )
        return stage.proofs()

    def _orders(self, place: int, orders: int) -> list[Proof]:
        stage = OrdersStage(self.stdout, orders)
        self._head(f"{place}. {orders} orders of {CUSTOMERS} customers, each with an event; the relay is killed")
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

    def _race(self, place: int) -> list[Proof]:
        shape = race.Shape()
        self._head(f"{place}. {shape.numbers} serial numbers, {shape.requests} requests, {shape.processes} processes")
        verdicts = list(race.run(list(STRATEGIES), shape))
        self.stdout.write(race_table(verdicts))
        self.stdout.write(notes(verdicts))
        sold = next(verdict for verdict in verdicts if verdict.strategy == "take")
        return [
            Proof("serial numbers handed out by take", shape.numbers, sold.handed_out),
            Proof("serial numbers issued twice", 0, sold.duplicates),
            Proof("serial numbers lost", 0, sold.unsold),
            Proof("requests that got two numbers", 0, sold.greedy),
        ]

    def _head(self, text: str) -> None:
        self.stdout.write(f"\n{text}\n{'=' * len(text)}")
