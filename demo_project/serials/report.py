"""The verdicts of a race as text and as a chart."""

import textwrap
from collections.abc import Sequence

from django.db import connection

from demo_project.demo.chart import draw_race, race_bar
from demo_project.demo.tables import table
from demo_project.serials.race import Verdict
from demo_project.serials.strategies import STRATEGIES, THINK_SECONDS

HEAD = [
    "strategy",
    "handed out",
    "sold twice",
    "never sold",
    "out of turn",
    "refused",
    "ms/number",
    "lock waits",
    "errors",
    "verdict",
]


def as_table(verdicts: Sequence[Verdict]) -> str:
    """One line per strategy."""
    return table(HEAD, [line(verdict) for verdict in verdicts])


def notes(verdicts: Sequence[Verdict]) -> str:
    """Notes that explain the table."""
    found = [
        f"{THINK_SECONDS * 1000:g} ms pass between read and save in every strategy but take, which has no such gap. "
        "errors: deadlocks, lock timeouts and busy answers that were met and retried. out of turn: buyers who got a "
        "lower number than one who had been answered before they asked; only in-order promises that there are none."
    ]
    if any(STRATEGIES[verdict.strategy].needs_redis and not verdict.not_run for verdict in verdicts):
        found.append(
            "redis-lock and redis-retry use jobqueue.locks.redis_lock, and write each sale under its fence: a buyer "
            "whose lock has expired is refused."
        )
    for verdict in verdicts:
        if verdict.repeats:
            kept = f"{verdict.greedy} got another number" if verdict.greedy else "each got the number it had"
            found.append(f"{verdict.strategy}: {verdict.repeats} requests were sent a second time; {kept}.")
    if connection.vendor == "sqlite":
        found.append(
            "SQLite has no row locks: the row-lock strategies are right here only because transactions begin IMMEDIATE "
            "(one writer at a time). unsafe reads outside a transaction and so sells twice even here."
        )
    if connection.vendor != "mysql":
        found.append("lock waits are counted by MySQL and MariaDB only.")
    return "\n".join(textwrap.fill(note, 110) for note in found)


def as_svg(title: str, verdicts: Sequence[Verdict], foot: str = "") -> str:
    """Numbers handed out per second as bars, red where one was sold twice or never; `foot` stands below."""
    rates = [None if v.not_run else 1000 / (v.ms_per_number or 1) for v in verdicts]
    bars = [race_bar(v.strategy, rate, kept=v.kept, text=v.text) for v, rate in zip(verdicts, rates, strict=True)]
    return draw_race(title, bars, foot)


def line(verdict: Verdict) -> list[object]:
    """The cells of a verdict, below HEAD."""
    if verdict.not_run:
        return [verdict.strategy, *["-"] * 8, verdict.text]
    errors = sum(verdict.errors.values())
    waits = "-" if verdict.lock_waits is None else verdict.lock_waits
    return [
        verdict.strategy,
        verdict.handed_out,
        verdict.duplicates,
        verdict.unsold,
        verdict.overtaken,
        verdict.refused,
        _Figure(verdict.ms_per_number),
        waits,
        errors,
        verdict.text,
    ]


class _Figure(float):
    def __str__(self) -> str:
        return f"{float(self):.2f}"
