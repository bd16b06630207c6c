"""The verdicts of a race as text and as a chart."""

import textwrap
from collections.abc import Sequence

from django.db import connection

from demo_project.auction.race import Verdict
from demo_project.auction.rules import THINK_SECONDS
from demo_project.demo.chart import draw_race, race_bar
from demo_project.demo.tables import table

HEAD = ["strategy", "commits", "commits/s", "refused", "crossed", "sold twice", "lock waits", "retried", "verdict"]


def as_table(verdicts: Sequence[Verdict]) -> str:
    """One line per strategy."""
    return table(HEAD, [line(verdict) for verdict in verdicts])


def notes() -> str:
    """Notes that explain the table."""
    found = [
        f"Each rule thinks for {THINK_SECONDS * 1000:g} ms between read and write. After every commit the process "
        "looks whether a bid stands above an ask of the same size. All move on to a new, empty size twenty "
        "times a second: there a lock on rows finds no row to lock. retried: deadlocks, lock timeouts and busy answers."
    ]
    if connection.vendor == "sqlite":
        found.append(
            "SQLite has one writer at a time and the demo's transactions begin IMMEDIATE, so the row-lock strategies "
            "keep the rules here, though they lock no row. none has no transaction and breaks them even here."
        )
    if connection.vendor != "mysql":
        found.append("lock waits are counted by MySQL and MariaDB only.")
    return "\n".join(textwrap.fill(note, 110) for note in found)


def as_svg(title: str, verdicts: Sequence[Verdict], foot: str = "") -> str:
    """Commits per second as bars, red where the rules were broken; `foot` stands below."""
    bars = [race_bar(v.strategy, None if v.not_run else v.per_second, kept=v.kept, text=v.text) for v in verdicts]
    return draw_race(title, bars, foot)


def line(verdict: Verdict) -> list[object]:
    """The cells of a verdict, below HEAD."""
    if verdict.not_run:
        return [verdict.strategy, *["-"] * 7, verdict.text]
    return [
        verdict.strategy,
        verdict.commits,
        round(verdict.per_second),
        verdict.refused,
        verdict.crossed,
        verdict.sold_twice,
        "-" if verdict.lock_waits is None else verdict.lock_waits,
        sum(verdict.errors.values()),
        verdict.text,
    ]
