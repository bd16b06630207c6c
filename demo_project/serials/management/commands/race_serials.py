"""python manage.py race_serials: many processes sell the same serial numbers, by each strategy in turn."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from demo_project.demo.recorded import apart
from demo_project.serials import race
from demo_project.serials.report import as_svg, as_table, notes
from demo_project.serials.strategies import STRATEGIES
from jobqueue.cli.arguments import count
from jobqueue.db import vendor_of


class Command(BaseCommand):
    """Exit status 1 if a strategy that claims to be safe sold a number twice or did not sell one."""

    help = "Race processes that sell serial numbers, by each strategy, and judge from the rows who got what."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--numbers", type=count(1_000_000), default=1000)
        parser.add_argument("--requests", type=count(10_000_000), default=5000)
        parser.add_argument("--processes", type=count(64), default=8)
        parser.add_argument("--strategy", choices=["all", *STRATEGIES], default="all")
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        parser.add_argument("--svg", type=Path, metavar="FILE", help="also write a chart")

    def handle(self, *args: Any, **given: Any) -> None:
        shape = race.Shape(given["numbers"], given["requests"], given["processes"])
        names = list(STRATEGIES) if given["strategy"] == "all" else [given["strategy"]]
        database = vendor_of(connection).describe(connection)
        verdicts = []
        for verdict in race.run(names, shape):
            verdicts.append(verdict)
            if not given["json"] and given["verbosity"] > 0:
                self.stderr.write(f"{verdict.strategy}: {verdict.text} ({verdict.seconds:.1f} s)")
        title = f"{shape.text}, {database}"
        if given["svg"]:
            given["svg"].write_text(as_svg(f"Serial numbers: {title}", verdicts))
        if given["json"]:
            found = [verdict.as_json() for verdict in verdicts]
            self.stdout.write(
                json.dumps({"version": 1, "database": database, "size": shape.text, **vars(shape), "strategies": found})
            )
        else:
            self.stdout.write(title)
            self.stdout.write(as_table(verdicts))
            self.stdout.write(notes(verdicts))
            self.stdout.write(apart("serials"))
        if any(verdict.safe and not verdict.not_run and not verdict.kept for verdict in verdicts):
            sys.exit(1)
