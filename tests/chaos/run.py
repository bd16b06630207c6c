"""python -m tests.chaos.run: try seeds on a real database, and print a line for each. make chaos runs it.

A seed decides which faults come when. What the processes do in between is theirs, so a violation may need several tries
of its seed. The result of each trial is added to tests/chaos/results.jsonl. Of a trial that broke a promise the folder
is kept and named, and so is the command that tries it again; --reduce looks for fewer faults that break it too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobqueue.base.durations import parse_seconds
from tests.launch import ROOT

RESULTS = ROOT / "tests/chaos/results.jsonl"
#: how often a smaller schedule is tried before its faults count as enough to keep the promises
TRIES = 2


def seeds(text: str) -> list[str]:
    """A seed, several with commas between them, or a range such as 1-8."""
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found += map(str, range(int(first), int(last) + 1)) if dash else [part]
    return found


def attempt(options: argparse.Namespace, seed: str, only: Sequence[int] | None = None) -> dict[str, Any]:
    """The result of one trial, with the folder of what it has left if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{options.db}-{seed}-"))
    command = [sys.executable, "-m", "tests.chaos.one", str(folder), "--seed", seed, "--seconds", str(options.seconds)]
    command += ["--no-outages"] * options.no_outages
    if only is not None:
        command += ["--only", ",".join(map(str, only))]
    with (folder / "output").open("wb") as output:
        env = {**os.environ, "JOBQUEUE_TEST_DB": options.db}
        trial = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=env)
        try:
            trial.wait()
        except BaseException:
            trial.terminate()
            trial.wait()
            raise
    kept = folder / "result.json"
    result = json.loads(kept.read_text()) if kept.exists() else _broken_off(options, seed, folder)
    if result["violations"]:
        result["folder"] = str(folder)
    else:
        shutil.rmtree(folder)
    return result


def _broken_off(options: argparse.Namespace, seed: str, folder: Path) -> dict[str, Any]:
    end = (folder / "output").read_text(errors="replace")[-2000:]
    numbers = {"planned": 0, "faults": 0, "jobs": 0}
    return {"database": options.db, "seed": seed, "violations": [f"the trial did not end: {end}"], **numbers}


def line(result: dict[str, Any]) -> str:
    """What is printed of a trial."""
    words = f"{result['database']} seed {result['seed']}: {result['faults']} faults, {result['jobs']} jobs, "
    return words + f"recovery {result.get('seconds of recovery', '-')} s, {len(result['violations'])} violations"


def keep(result: dict[str, Any]) -> None:
    """Add a result to the file of all results, with the commit and the day."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    with RESULTS.open("a") as file:
        known = {key: value for key, value in result.items() if key != "folder"}
        file.write(json.dumps({"day": f"{datetime.now(UTC):%Y-%m-%d}", "commit": done.stdout.strip(), **known}) + "\n")


def again(options: argparse.Namespace, seed: str, only: Sequence[int] | None = None) -> str:
    """The command that tries a seed once more."""
    words = f"make chaos SEED={seed} DB={options.db} FOR={options.seconds:g}s"
    return words if only is None else f"{words} ONLY={','.join(map(str, only))}"


def reduced(options: argparse.Namespace, seed: str, count: int) -> list[int]:
    """The numbers of fewer faults that break a promise too: halves, then quarters, and so on are left out."""
    only, parts = list(range(count)), 2
    while len(only) > 1 and parts <= len(only):
        for rest in _without_a_part(only, parts):
            if any(attempt(options, seed, rest)["violations"] for _ in range(TRIES)):
                print(f"  {len(rest)} faults are enough: {again(options, seed, rest)}", flush=True)
                only, parts = rest, max(2, parts - 1)
                break
        else:
            parts *= 2
    return only


def _without_a_part(only: list[int], parts: int) -> Iterator[list[int]]:
    size = -(-len(only) // parts)
    for begin in range(0, len(only), size):
        if rest := only[:begin] + only[begin + size :]:
            yield rest


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--db", choices=("sqlite", "mysql", "mariadb", "postgres"), default="mysql")
    parser.add_argument("--seed", default="", help="7, 1,5 or 1-8; none: a new one")
    parser.add_argument("--for", dest="seconds", type=parse_seconds, default=30.0, metavar="DURATION")
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")], metavar="NUMBER,...")
    parser.add_argument("--no-outages", action="store_true", help="leave the server alone")
    parser.add_argument("--reduce", action="store_true", help="look for fewer faults that break a promise too")
    options = parser.parse_args(arguments)
    broken = False
    for seed in seeds(options.seed or str(random.randrange(10**6))):
        result = attempt(options, seed, options.only)
        keep(result)
        print(line(result), flush=True)
        for violation in result["violations"]:
            print(f"  {violation}")
        if result["violations"]:
            broken = True
            print(f"  evidence: {result['folder']}\n  again: {again(options, seed, options.only)}", flush=True)
            if options.reduce and options.only is None:
                reduced(options, seed, result["planned"])
    return int(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
