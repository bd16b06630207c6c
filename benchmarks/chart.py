"""SVG charts without a library: horizontal bars, and lines."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL", "sqlite": "SQLite"}
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.q{fill:#57606a}.o{fill:#0969da}.r{fill:#afb8c1}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.q{fill:#9198a1}.o{fill:#4493f8}.r{fill:#656c76}}"
)
_ROW, _LEFT, _WIDE, _FULL = 24, 230, 420, 760
Bar = tuple[str, float, bool]


def write(record: dict[str, Any], folder: Path) -> dict[str, str]:
    """One chart per measure that has one; measure -> file name."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for measure, (title, find) in _CHARTS.items():
        groups = {}
        for kind, found in record["databases"].items():
            if measure in found["measures"]:
                groups[_NAMES[kind]] = list(find(found["measures"][measure]))
        if any(groups.values()):
            name = f"bench-{measure}.svg"
            (folder / name).write_text(bars(title, groups))
            written[measure] = name
    return written


def bars(title: str, groups: dict[str, list[Bar]]) -> str:
    """One group of bars per database, each group on its own scale; ours stands out by colour and by its label."""
    body, y = [f'<text x="0" y="18" font-weight="600">{escape(title)}</text>'], 44
    for group, items in groups.items():
        if not items:
            continue
        body.append(f'<text x="0" y="{y}" font-weight="600">{escape(group)}</text>')
        y += 10
        largest = max(value for _, value, _ in items) or 1
        for label, value, ours in items:
            width = max(1.0, _WIDE * value / largest)
            body.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
            look = f'width="{width:.1f}" height="16" class="{"o" if ours else "r"}"'
            body.append(f'<rect x="{_LEFT}" y="{y + 3}" {look}/>')
            body.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 15}" class="q">{_shown(value)}</text>')
            y += _ROW
        y += 28
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_FULL} {y}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *body, "</svg>", ""])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _drain(found: dict[str, Any]) -> Iterator[Bar]:
    for name, entry in found.get("1 worker", {}).items():
        if entry["per_second"]:
            yield name, entry["per_second"]["median"], name.startswith("jobqueue")


def _enqueue(found: dict[str, Any]) -> Iterator[Bar]:
    for name, entry in found["single"].items():
        if entry["per_second"]:
            yield name, entry["per_second"]["median"], name in ("enqueue()", "task.enqueue()")


def _latency(found: dict[str, Any]) -> Iterator[Bar]:
    for name, entry in found.items():
        if entry["ms"]:
            yield name, entry["ms"]["p50"], name == "jobqueue"


def _growth(found: dict[str, Any]) -> Iterator[Bar]:
    for label, entry in found.items():
        if entry["jobqueue"]["claim_ms"]:
            yield label, entry["jobqueue"]["claim_ms"]["median"], True


def _scaling(found: dict[str, Any]) -> Iterator[Bar]:
    for count, entry in found.items():
        if entry["jobqueue"]["per_second"]:
            yield f"{count} processes", entry["jobqueue"]["per_second"]["median"], True


def _outbox(found: dict[str, Any]) -> Iterator[Bar]:
    for part in ("publish", "deliver"):
        for name, entry in found[part].items():
            if entry["per_second"]:
                yield name, entry["per_second"]["median"], not name.startswith("raw")


_CHARTS = {
    "drain": ("Jobs a second, one worker, finishes committed", _drain),
    "enqueue": ("Single enqueues a second, each committed", _enqueue),
    "latency": ("Milliseconds from commit to start, median", _latency),
    "growth": ("Milliseconds for a claim of 100 jobs", _growth),
    "outbox": ("Events a second, published and delivered", _outbox),
    "scaling": ("Jobs a second by number of worker processes", _scaling),
}
