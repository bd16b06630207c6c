"""The charts of docs/benchmarks.md: one bar for each queue and database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_project.demo.chart import Bar, draw_bars

_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL", "sqlite": "SQLite"}


def write(record: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write a chart for each measure that has one. Returns the file names by measure."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for measure, (title, find) in _CHARTS.items():
        groups = {}
        for kind, found in record["databases"].items():
            if measure in found["measures"]:
                groups[_NAMES[kind]] = list(find(found["measures"][measure]))
        if any(groups.values()):
            name = f"bench-{measure}.svg"
            (folder / name).write_text(draw_bars(title, groups, left=230, width=760))
            written[measure] = name
    return written


def _bar(name: str, value: float, own: bool) -> Bar:
    return Bar(name, value, "own" if own else "other", f"{value:,.0f}" if value >= 100 else f"{value:.3g}")


def _drain(found: dict[str, Any]) -> Iterator[Bar]:
    for name, entry in found.get("1 worker", {}).items():
        if entry["per_second"]:
            yield _bar(name, entry["per_second"]["median"], name.startswith("jobqueue"))


def _enqueue(found: dict[str, Any]) -> Iterator[Bar]:
    for name, entry in found["single"].items():
        if entry["per_second"]:
            yield _bar(name, entry["per_second"]["median"], name in ("enqueue()", "task.enqueue()"))


def _latency(found: dict[str, Any]) -> Iterator[Bar]:
    for name, entry in found.items():
        if entry["ms"]:
            yield _bar(name, entry["ms"]["p50"], name == "jobqueue")


def _growth(found: dict[str, Any]) -> Iterator[Bar]:
    for label, entry in found.items():
        if entry["jobqueue"]["claim_ms"]:
            yield _bar(label, entry["jobqueue"]["claim_ms"]["median"], True)


def _scaling(found: dict[str, Any]) -> Iterator[Bar]:
    for count, entry in found.items():
        if entry["jobqueue"]["per_second"]:
            yield _bar(f"{count} processes", entry["jobqueue"]["per_second"]["median"], True)


def _outbox(found: dict[str, Any]) -> Iterator[Bar]:
    for part in ("publish", "deliver"):
        for name, entry in found[part].items():
            if entry["per_second"]:
                yield _bar(name, entry["per_second"]["median"], not name.startswith("raw"))


_CHARTS = {
    "drain": ("Jobs a second, one worker, finishes committed", _drain),
    "enqueue": ("Single enqueues a second, each committed", _enqueue),
    "latency": ("Milliseconds from commit to start, median", _latency),
    "growth": ("Milliseconds for a claim of 100 jobs", _growth),
    "outbox": ("Events a second, published and delivered", _outbox),
    "scaling": ("Jobs a second by number of worker processes", _scaling),
}
