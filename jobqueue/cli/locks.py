"""The sub-command locks: print lock statistics, sessions that wait for a lock now, and deadlocks."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.utils import translation

from jobqueue.base.durations import format_seconds
from jobqueue.cli.arguments import count, duration
from jobqueue.cli.output import Result, Subcommand
from jobqueue.lockstats import report
from jobqueue.lockstats.recorder import OTHER
from jobqueue.lockstats.report import DeadlockHour, LockSummary, RedoneTransactions, ServerLocks, blocker, finding_lines
from jobqueue.models import LockFinding, LockRow


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=duration, default=3600.0, metavar="D", help="period of the statistics (default 1h)"
    )
    parser.add_argument("--limit", type=count(1000), default=20, metavar="N", help="rows of each list (default 20)")


def _locks(using: str, given: dict[str, Any]) -> Result:
    seconds, limit = given["since"], given["limit"]
    server = report.read_server(using=using, limit=limit)
    kinds = report.read_kinds(seconds=seconds, using=using)
    keys = report.read_keys(seconds=seconds, limit=limit, using=using)
    held = report.read_held(limit=limit, using=using)
    redone = report.read_redone(seconds=seconds, using=using)
    hours = report.read_deadlock_hours(seconds=seconds, using=using)
    found = {kind: list(report.read_findings(kind, limit=limit, using=using)) for kind in LockFinding.Kind}
    # English, as everything on the command line.
    with translation.override(None):
        ours = [*_statistics(seconds, kinds, keys), *_redone(redone), *_hours(hours), *_held(held)]
        lines = [*ours, *_server(server), *_found(found)]
    return Result(_document(seconds, server, kinds, keys, redone, hours, held, found), lines)


def _document(
    seconds: float,
    server: ServerLocks,
    kinds: list[LockSummary],
    keys: list[LockSummary],
    redone: list[RedoneTransactions],
    hours: list[DeadlockHour],
    held: Iterable[LockRow],
    found: Mapping[LockFinding.Kind, list[LockFinding]],
) -> dict[str, object]:
    return {
        "since_seconds": seconds,
        "kinds": [_counters_of(one) for one in kinds],
        "keys": [_counters_of(one) | {"key": None if one.key == OTHER else one.key} for one in keys],
        "redone": [_values(one, "verb", "error", "redone", "given_up", "last_seen_at") for one in redone],
        "deadlock_hours": [asdict(one) for one in hours],
        "held": [{"key": row.lock_key, **_values(row, "owner", "fence", "acquired_at", "expires_at")} for row in held],
        "waits": None if server.waits is None else [asdict(wait) for wait in server.waits],
        "deadlocks": server.deadlocks,
        "slow_statements": None if server.slow is None else [asdict(slow) for slow in server.slow],
        "problems": list(server.problems),
        "found": [
            _values(row, "kind", "first_seen_at", "last_seen_at", "seconds", "detail")
            for rows in found.values()
            for row in rows
        ],
    }


def _values(row: object, *names: str) -> dict[str, object]:
    values = {name: getattr(row, name) for name in names}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def _counters_of(one: LockSummary) -> dict[str, object]:
    return {"kind": one.kind, **asdict(one.counters), "failure_rate": round(one.failure_rate, 4)}


def _statistics(seconds: float, kinds: list[LockSummary], keys: list[LockSummary]) -> Iterator[str]:
    yield f"Locks of the last {format_seconds(seconds)}"
    for one in kinds:
        yield "  " + _line(one, f"{one.kind}{'es' if one.kind.endswith('x') else 's'}")
    if not kinds:
        yield "  none"
    yield "Most contended keys"
    for one in keys:
        key = "(all other keys)" if one.key == OTHER else one.key
        yield "  " + _line(one, f"{one.kind}  {key}")


def _line(one: LockSummary, name: str) -> str:
    counters = one.counters
    held = format_seconds(one.held_seconds) if counters.released else "-"
    return (
        f"{name}  acquired {counters.acquired}  waited {counters.contended}  failed {counters.failed} "
        f"({one.failure_rate:.1%})  wait {format_seconds(one.wait_seconds)} (longest "
        f"{format_seconds(counters.wait_us_max / 1e6)})  held {held}  re-entries {counters.reentries}"
    )


def _redone(redone: Iterable[RedoneTransactions]) -> Iterator[str]:
    yield "Redone transactions"
    for one in redone:
        yield (
            f"  {one.verb}  {one.error}  redone {one.redone}  given up {one.given_up}  "
            f"last {format_seconds(max(0.0, (one.now - one.last_seen_at).total_seconds()))} ago"
        )


def _hours(hours: Iterable[DeadlockHour]) -> Iterator[str]:
    yield "Deadlocks by hour of the day in UTC"
    for one in hours:
        yield f"  {one.hour:02}:00  {one.deadlocks}"


def _held(held: Iterable[LockRow]) -> Iterator[str]:
    yield "Lease locks held now"
    for row in held:
        left = format_seconds((row.expires_at - row.now).total_seconds())  # type: ignore[attr-defined]
        yield f"  {row.lock_key}  {row.owner}  fence {row.fence}  {left} left"


def _server(server: ServerLocks) -> Iterator[str]:
    yield "Sessions waiting for a lock now"
    for wait in server.waits or []:
        what = f"{wait.locked} ({wait.mode})  {wait.waiting_statement}"
        yield f"  {wait.waiting} for {format_seconds(wait.seconds)}  {what}"
        age = "" if wait.blocking_seconds is None else f", open for {format_seconds(wait.blocking_seconds)}"
        yield f"    held by {wait.blocking}{age}: {blocker(wait)}"
    if server.slow:
        yield "Statements by lock wait time"
        for slow in server.slow:
            yield f"  {format_seconds(slow.lock_seconds)}  {slow.runs} runs  {slow.statement}"
    if server.deadlocks is not None:
        yield f"Deadlocks since the server began to count: {server.deadlocks}"
    for problem in server.problems:
        yield f"Not shown: {problem}"


def _found(found: Mapping[LockFinding.Kind, list[LockFinding]]) -> Iterator[str]:
    for kind, rows in found.items():
        for row in rows:
            ago = format_seconds(max(0.0, (row.now - row.last_seen_at).total_seconds()))  # type: ignore[attr-defined]
            yield f"{kind.label}, {ago} ago"
            for line in finding_lines(row):
                yield f"  {line}"


LOCKS = Subcommand("Print lock statistics, sessions that wait for a lock now, and deadlocks.", _declare, _locks)
