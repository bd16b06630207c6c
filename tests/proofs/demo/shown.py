"""python -m tests.proofs.demo.shown FILE...: show the races that are kept in FILEs wherever the demo does.

That is in races.json, from which the demo's site draws, and in the charts and tables of two pages of docs/.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.proofs.freshness import FIGURE
from tests.proofs.model import ROOT
from tests.proofs.page import Result
from tests.proofs.table import PAGES

ORDER = ("sqlite", "mysql", "mariadb", "postgres")
NAMES = {"sqlite": "SQLite", "mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL"}
CHART = "mysql"
PAGE = PAGES["demo"]
#: the pages that show a race, what the table says, and what the chart shows
SHOWN = {
    "serials": (
        "docs/howto/serial-numbers.md",
        "Numbers sold per second, and what went wrong:",
        "Numbers per second of each strategy on MySQL, red where numbers were sold twice or never",
    ),
    "auction": (
        "docs/explanation/auction.md",
        "Commits per second, and what went wrong:",
        "Commits per second of each strategy on MySQL, red where the rules were broken",
    ),
}


def main(*files: str) -> None:
    """Write races.json, the charts and the figures of the pages."""
    from demo_project.demo import recorded

    content = content_of(results(files))
    recorded.FILE.write_text(json.dumps(content, indent=1) + "\n")
    for path, text in pages(content).items():
        path.write_text(text)


def results(files: Iterable[str]) -> list[Result]:
    """What is kept in the files."""
    return [Result.read(Path(file)) for file in files]


def content_of(found: Iterable[Result]) -> dict:
    """The content of races.json."""
    runs = [
        {**line["run"], "made_by": PAGE.command, "commit": result.commit}
        for result in found
        for line in result.lines
        if "run" in line
    ]
    runs.sort(key=lambda run: (list(SHOWN).index(run["race"]), ORDER.index(run["vendor"])))
    machine = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    return {"version": 1, "machine": machine, "runs": runs}


def pages(content: dict) -> dict[Path, str]:
    """What stands in each page and chart, by its path."""
    from demo_project.demo import recorded

    found = {}
    for race, (name, _, _) in SHOWN.items():
        of_race = [run for run in recorded.read(content) if run.race == race]
        if of_race:
            page = (ROOT / name).read_text()
            found[ROOT / name] = replaced(page, shown(race, of_race), of_race[0].commit)
        found |= {ROOT / f"docs/img/{race}-{CHART}.svg": run.svg for run in of_race if run.vendor == CHART}
    return found


def shown(race: str, runs: Sequence) -> str:
    """The chart and the short table of a race for its page, with the source of the figures below."""
    _, says, chart = SHOWN[race]
    lines = []
    if any(run.vendor == CHART for run in runs):
        lines += [f"![{chart}](../img/{race}-{CHART}.svg)", ""]
    strategies = list(dict.fromkeys(found["strategy"] for run in runs for found in run.strategies))
    rows = [[f"`{name}`", *(_short(run, name) for run in runs)] for name in strategies]
    lines += [says, "", *_table(["strategy", *(NAMES[run.vendor] for run in runs)], rows), ""]
    first = runs[0]
    lines += [
        f"Recorded by `{first.made_by}`, commit `{first.commit}`, {first.date}:",
        f"{first.size}. [All columns](../proof/demo.md). A race on your machine has other figures.",
    ]
    return "\n".join(lines)


def _short(run, name: str) -> str:
    (found,) = [found for found in run.strategies if found["strategy"] == name]
    if found["not_run"]:
        return "-"
    rate = found["per_second"] if run.race == "auction" else 1000 / (found["ms_per_number"] or 1)
    return f"{rate:,.0f}/s" if found["kept"] and not found.get("unsold") else f"{rate:,.0f}/s; {_wrong(found)}"


def _wrong(found) -> str:
    return str(found["verdict"]).removeprefix("BROKEN: ")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [list(head), ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def replaced(text: str, figures: str, commit: str) -> str:
    """A page with other figures between the comments that tie them to their page of evidence."""
    found = [match for match in FIGURE.finditer(text) if match[1] == PAGE.file]
    assert len(found) == 1, f"the page has no place for the figures of {PAGE.file}"
    begin, end = found[0].span()
    return f"{text[:begin]}<!-- figure: {PAGE.file} {commit} -->\n{figures}\n<!-- figure: end -->{text[end:]}"


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
    import django

    django.setup()
    main(*sys.argv[1:])
