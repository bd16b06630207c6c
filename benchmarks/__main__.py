"""python -m benchmarks: measure on the started servers, write docs/benchmarks.md, its charts and a JSON record."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.plan import DATABASES, MEASURES, SIZES, Plan
from benchmarks.workers import ROOT


def main() -> int:
    """Exit status 0 if everything was measured that the options select."""
    options = _parser().parse_args()
    plan = _plan(options)
    begun = time.monotonic()
    record: dict[str, Any] = {"run": _about(options.size, plan), "databases": {}}
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        for kind in options.db:
            url = folder if kind == "sqlite" else os.environ.get(f"JOBQUEUE_TEST_{kind.upper()}_URL")
            if url is None:
                print(f"{kind}: NOT MEASURED, JOBQUEUE_TEST_{kind.upper()}_URL is not set", file=sys.stderr)
                record["databases"][kind] = {"measures": {}, "errors": {"server": "not available"}}
                continue
            record["databases"][kind] = _measure(kind, url, plan, Path(folder, f"{kind}.json"))
    record["run"]["minutes"] = round((time.monotonic() - begun) / 60, 1)
    _date(record)
    last = options.results / "last.json"
    if options.add and last.exists():
        keep(json.loads(last.read_text()), record)
    saved = _save(record, options.results)
    report.write(record, options.page)
    print(report.summary(record))
    print(f"{saved.name} and {options.page.name} written")
    return int(any(found["errors"] for found in record["databases"].values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--only", type=_some(MEASURES), default=list(MEASURES), metavar="MEASURE,...", help=", ".join(MEASURES))
    add("--db", type=_some(DATABASES), default=list(DATABASES), metavar="DB,...", help=", ".join(DATABASES))
    add("--quick", action="store_const", const="quick", dest="size", default="full", help="minutes instead of hours")
    add("--tiny", action="store_const", const="tiny", dest="size", help="only to check that it works")
    add("--peers", default="auto", metavar="NAME,...", help="auto (all that are installed), none, or names")
    add("--add", action="store_true", help="keep what the last run measured and this one does not")
    add("--rounds", type=int, default=None, metavar="N", help="interleaved rounds")
    add("--results", type=Path, default=ROOT / "benchmarks/results", metavar="DIR", help="where the JSON record goes")
    add("--page", type=Path, default=ROOT / "docs/benchmarks.md", metavar="FILE", help="the page to write into")
    return parser


def _some(known: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if not names or not set(names) <= set(known):
            raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}")
        return names

    return parse


def _plan(options: argparse.Namespace) -> Plan:
    plan = replace(SIZES[options.size], only=tuple(options.only), peers=tuple(options.peers.split(",")))
    return plan if options.rounds is None else replace(plan, rounds=options.rounds)


def _measure(kind: str, url: str, plan: Plan, out: Path) -> dict[str, Any]:
    """Measure one database in a process of its own, because Django's settings are per process."""
    here = {"BENCH_DB": kind, "BENCH_URL": url, "BENCH_NAME": f"jobqueue_bench_{os.getpid()}"}
    given = {"BENCH_PLAN": json.dumps(plan.as_json()), "BENCH_OUT": str(out)}
    env = {**os.environ, **here, **given, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
    status = subprocess.run([sys.executable, "-m", "benchmarks.database"], cwd=ROOT, env=env, check=False).returncode
    if status or not out.exists():
        return {"measures": {}, "errors": {"process": f"ended with status {status}"}}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _about(size: str, plan: Plan) -> dict[str, Any]:
    import django

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "size": size,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "django": django.get_version(),
        "plan": plan.as_json(),
    }


def _commit() -> str:
    if not (ROOT / ".git").exists():
        return "unknown (no clone of the repository)"
    commit = _git("rev-parse", "--short=12", "HEAD")
    # Files that a run writes itself do not change what the next run measures.
    if _git("status", "--porcelain", "--", ".", ":!docs", ":!benchmarks/results", ":!demo_project/demo/races.json"):
        commit += "-dirty"
    return commit


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _date(record: dict[str, Any]) -> None:
    run = record["run"]
    text = f"{run['date']}, commit {run['commit']}, size `{run['size']}`, load {run['load_before']:.1f} before"
    for found in record["databases"].values():
        found["dates"] = dict.fromkeys([*found["measures"], *found["errors"]], text)


def keep(last: dict[str, Any], record: dict[str, Any]) -> None:
    """Add to `record` the measures that only `last` has, each with the date of its run."""
    for kind, old in last["databases"].items():
        new = record["databases"].setdefault(kind, {**old, "measures": {}, "errors": {}, "dates": {}})
        again = new["dates"].keys() | new.get("peers", {}).keys()
        new["peers"] = old.get("peers", {}) | new.get("peers", {})
        for part in ("measures", "errors"):
            kept = {name: found for name, found in old[part].items() if name not in again}
            new[part] |= kept
            new["dates"] |= {name: old["dates"][name] for name in kept}
    record["databases"] = {kind: record["databases"][kind] for kind in DATABASES if kind in record["databases"]}


def _save(record: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    text = json.dumps(record, indent=1) + "\n"
    path.write_text(text)
    # The record of the page, and the only one that is kept in git.
    (folder / "last.json").write_text(text)
    return path


if __name__ == "__main__":
    sys.exit(main())
