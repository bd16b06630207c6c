"""python manage.py demo: the whole product in under a minute, with proofs at the end."""

import signal
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from demo_project.demo.files_stage import FilesStage
from demo_project.demo.proof import Proof, as_table
from demo_project.serials import race
from demo_project.serials.report import as_table as race_table
from demo_project.serials.report import notes
from demo_project.serials.strategies import STRATEGIES
from jobqueue.db import vendor_of


class Command(BaseCommand):
    """Exit status 0 only if every proof holds, else 1."""

    help = "Run real jobs, kill a worker half-way, race for serial numbers, and prove that nothing was lost or doubled."

    def handle(self, *args: Any, **given: Any) -> None:
        """Both stages, then the table."""
        # So that the worker is stopped on the way out.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        began = time.monotonic()
        self._head(f"jobqueue demo on {vendor_of(connection).describe(connection)}")
        files = self._files()
        verdicts = self._race()
        sold = next(verdict for verdict in verdicts if verdict.strategy == "take")
        proofs = [
            *files.proofs(),
            Proof("serial numbers handed out by take", race.Shape().numbers, sold.handed_out),
            Proof("serial numbers issued twice", 0, sold.duplicates),
            Proof("serial numbers lost", 0, sold.unsold),
            Proof("requests that got two numbers", 0, sold.greedy),
        ]
        self._head("What was proved")
        self.stdout.write(as_table(proofs))
        failed = sum(not proof.holds for proof in proofs)
        seconds = time.monotonic() - began
        self.stdout.write(f"\n{len(proofs) - failed} of {len(proofs)} proofs hold; {seconds:.0f} s.")
        if failed:
            sys.exit(1)

    def _files(self) -> FilesStage:
        stage = FilesStage(self.stdout)
        self._head(f"1. One job per source file: {len(stage.paths)} files, one worker process is killed half-way")
        stage.enqueue()
        stage.work()
        found = stage.recovery()
        self.stdout.write(
            f"{len(stage.paths)} files in {stage.seconds:.1f} s. Leases recovered from the killed process: "
            f"{found.charged + found.given_back} ({found.given_back} given back unstarted, {found.charged} charged an "
            f"attempt and run again; {found.reaped} by reap_leases, the others by the worker's own supervisor)."
        )
        return stage

    def _race(self) -> list[race.Verdict]:
        shape = race.Shape()
        self._head(f"2. {shape.numbers} serial numbers, {shape.requests} requests, {shape.processes} processes")
        verdicts = list(race.run(list(STRATEGIES), shape))
        self.stdout.write(race_table(verdicts))
        self.stdout.write(notes(verdicts))
        return verdicts

    def _head(self, text: str) -> None:
        self.stdout.write(f"\n{text}\n{'=' * len(text)}")
