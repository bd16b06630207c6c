"""python -m tests.proofs.demo.page COMMIT FILE...: the races in FILEs, as docs/proof/demo.md and wherever else
the demo shows them: races.json, from which the demo's site draws, and the charts and tables of two pages of docs/.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from tests.launch import ROOT

ORDER = ("sqlite", "mysql", "mariadb", "postgres")
NAMES = {"sqlite": "SQLite", "mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL"}
CHART = "mysql"
SMALL = "JOBQUEUE_PROVE_SMALL=1"
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
HEADINGS = {"serials": "Serial numbers", "auction": "The auction"}
MEANINGS = {
    "serials": (
        "*sold twice* and *never sold* are numbers, counted from the answers that buyers got. *out of turn* are buyers "
        "who got a lower number than one who had been answered before they asked; only `in-order` promises that there "
        "are none. *refused* are requests without an answer, *errors* deadlocks, lock timeouts and busy answers that "
        "were retried. *lock waits* are counted by MySQL and MariaDB only. Every strategy but `take` computes for 1 ms "
        "between read and save. `redis-lock` and `redis-retry` use `jobqueue.locks.redis_lock` with its fence."
    ),
    "auction": (
        "*crossed* are markets in which a process saw a bid above an ask, *sold twice* offers with two buyers, or a "
        "buyer and a cancellation. *refused* are moves that the rules did not allow, *retried* deadlocks, lock "
        "timeouts and busy answers. *lock waits* are counted by MySQL and MariaDB only. Every move computes for 1 ms "
        "between read and write. `redis-lock` uses `jobqueue.locks.redis_lock`."
    ),
}


def main(commit: str, *files: str) -> None:
    """Write races.json and the pages."""
    from demo_project.demo import recorded

    runs = [json.loads(line)["run"] for file in files for line in Path(file).read_text().splitlines()]
    vendors = {run["vendor"] for run in runs}
    command = "make prove ISSUE=demo" + (f" DB={min(vendors)}" if len(vendors) == 1 else "")
    made_by = f"{SMALL} {command}" if os.environ.get("JOBQUEUE_PROVE_SMALL") else command
    runs = [{**run, "made_by": made_by, "commit": commit} for run in runs]
    runs.sort(key=lambda run: (list(SHOWN).index(run["race"]), ORDER.index(run["vendor"])))
    machine = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    content = {"version": 1, "machine": machine, "runs": runs}
    recorded.FILE.write_text(json.dumps(content, indent=1) + "\n")
    for path, text in pages(content).items():
        path.write_text(text)


def pages(content: dict) -> dict[Path, str]:
    """What stands in each page and chart, by its path."""
    from demo_project.demo import recorded

    runs = recorded.read(content)
    found = {ROOT / "docs/proof/demo.md": proof(runs, content["machine"])}
    for race, (name, _, _) in SHOWN.items():
        of_race = [run for run in runs if run.race == race]
        if of_race:
            found[ROOT / name] = replaced((ROOT / name).read_text(), shown(race, of_race))
        found |= {ROOT / f"docs/img/{race}-{CHART}.svg": run.svg for run in of_race if run.vendor == CHART}
    return found


def proof(runs: Sequence, machine: str) -> str:
    """The page of all figures."""
    lines = [
        "# Proof: demo\n",
        f"Command: `{runs[0].made_by}`, commit `{runs[0].commit}`, {machine}.\n",
        "Each table is what one run of a command measured, one database after the other. It stands here only if its",
        "test has passed, in `tests/proofs/demo/`. How the strategies differ:",
        "[serial numbers](../howto/serial-numbers.md), [the auction](../explanation/auction.md).\n",
    ]
    if runs[0].made_by.startswith(SMALL):
        lines.append("**This was a small run, to show the form of the page. Its speeds say little.**\n")
    for race in SHOWN:
        of_race = [run for run in runs if run.race == race]
        if of_race:
            lines += [f"## {HEADINGS[race]}\n", fill(MEANINGS[race], 125), ""]
        for run in of_race:
            lines += [f"### {run.database}\n", f"`{run.command}` ({run.size}), {run.date}.\n"]
            lines += [*_table(run.head, run.rows), ""]
    return "\n".join(lines)


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
    if first.made_by.startswith(SMALL):
        lines.append("This was a small run; its speeds say little.")
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


def replaced(text: str, block: str) -> str:
    """A page with another block between its markers."""
    begin, end = "<!-- demo: begin -->", "<!-- demo: end -->"
    assert begin in text, f"the page has no {begin}"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{block}\n{end}", text, flags=re.DOTALL)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
    import django

    django.setup()
    main(*sys.argv[1:])
