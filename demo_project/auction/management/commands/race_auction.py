"""python manage.py race_auction: many processes bid, ask and trade, guarded by each strategy in turn."""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from demo_project.auction import race
from demo_project.auction.report import as_svg, as_table, notes
from demo_project.auction.strategies import STRATEGIES
from demo_project.demo.recorded import apart
from jobqueue.cli.arguments import count, duration
from jobqueue.db import vendor_of


class Command(BaseCommand):
    """Exit status 1 if a strategy that claims to be safe broke the rules."""

    help = (
        "Race processes that bid, ask, trade and cancel, by each strategy; look after every commit if the rules hold."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--processes", type=count(64), default=8)
        parser.add_argument("--seconds", type=duration, default=3.0, help="length of the race of a strategy")
        parser.add_argument("--strategy", choices=["all", *STRATEGIES], action="append", help="may be repeated")
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        parser.add_argument("--svg", type=Path, metavar="FILE", help="also write a chart")

    def handle(self, *args: Any, **given: Any) -> None:
        shape = race.Shape(given["processes"], given["seconds"])
        wanted = given["strategy"] or ["all"]
        names = [name for name in STRATEGIES if "all" in wanted or name in wanted]
        database = vendor_of(connection).describe(connection)
        title = f"{shape.text}, {database}"
        verdicts = []
        for verdict in race.run(names, shape):
            verdicts.append(verdict)
            if not given["json"] and given["verbosity"] > 0:
                self.stderr.write(f"{verdict.strategy}: {verdict.text}")
        if given["svg"]:
            given["svg"].write_text(as_svg(f"The auction: {title}", verdicts))
        if given["json"]:
            found = [verdict.as_json() for verdict in verdicts]
            self.stdout.write(
                json.dumps(
                    {
                        "version": 1,
                        "race": title,
                        "database": database,
                        "size": shape.text,
                        **vars(shape),
                        "strategies": found,
                    }
                )
            )
        else:
            self.stdout.write(title)
            self.stdout.write(as_table(verdicts))
            self.stdout.write(notes())
            self.stdout.write(apart("auction"))
        if any(verdict.safe and not verdict.not_run and not verdict.kept for verdict in verdicts):
            sys.exit(1)
