"""Writes docs/benchmarks.md: tables between two markers, so that the text around them is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import chart
from benchmarks.tables import TABLES

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
#: the page before anything was measured
_NEW = Path(__file__).with_name("page.md")
_ORDER = (
    *("drain", "enqueue", "latency", "growth", "snapshot", "resources", "idle", "scaling"),
    *("locks", "outbox", "keys"),
)
_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL", "sqlite": "SQLite"}


def write(record: dict[str, Any], page: Path) -> None:
    """Replace the text between the markers, and write the charts to img/ beside the page."""
    text = (page if page.exists() else _NEW).read_text()
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    images = chart.write(record, page.parent / "img")
    body = "\n".join(_body(record, images))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{head}{BEGIN}\n\n{body}\n\n{END}{tail}")


def _body(record: dict[str, Any], images: dict[str, str]) -> Iterator[str]:
    yield from _about(record)
    for measure in _ORDER:
        lines = [line for kind in record["databases"] for line in _table(record, kind, measure)]
        if not lines:
            continue
        title, explanation, _ = TABLES[measure]
        yield from ("", f"### {title}", "", explanation, "")
        if measure in images:
            yield from (f"![{title}](img/{images[measure]})", "")
        yield from lines[:-1]


def _about(record: dict[str, Any]) -> Iterator[str]:
    run = record["run"]
    yield (
        f"Last run: {run['date']}, {run['cores']} cores ({run['machine']}), Python {run['python']}, Django "
        f"{run['django']}, {run['minutes']} minutes. Each table says when it was measured, of which commit, at which "
        "size and under which load before. A cell is the median of the rounds with (smallest-largest)."
    )
    yield ""
    yield "| database | version | durability (the server's own defaults) | other queues in this run |"
    yield "|---|---|---|---|"
    for kind, found in record["databases"].items():
        server = found.get("server", {"version": "not measured", "durability": {}})
        settings = ", ".join(f"{name} = {value}" for name, value in server["durability"].items())
        peers = ", ".join(f"{name} {version}" for name, version in found.get("peers", {}).items())
        yield f"| {_NAMES[kind]} | {server['version']} | {settings} | {peers or 'none'} |"
    for kind, found in record["databases"].items():
        for measure, error in found["errors"].items():
            yield f"\n**{_NAMES[kind]}, {measure}: not measured.** {error.splitlines()[0]}"


def _table(record: dict[str, Any], kind: str, measure: str) -> Iterator[str]:
    found = record["databases"][kind]["measures"].get(measure)
    if found is not None:
        date = record["databases"][kind]["dates"][measure]
        yield from (f"**{_NAMES[kind]}** ({date})", "", *TABLES[measure][2](found), "")


def summary(record: dict[str, Any]) -> str:
    """The tables without the page's text, for the terminal."""
    lines = []
    for measure in _ORDER:
        for kind in record["databases"]:
            found = list(_table(record, kind, measure))
            lines += [f"\n{measure}, {_NAMES[kind]}", *found[2:-1]] if found else []
    errors = [f"{kind} {m}: {e}" for kind, found in record["databases"].items() for m, e in found["errors"].items()]
    return "\n".join(lines + errors)
