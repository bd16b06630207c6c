"""python -m benchmarks.check [--base COMMIT]: whether the working tree is slower than a commit, in about three minutes.

Both versions enqueue and drain jobs in turn, on databases of their own on one server, with the benchmark code and the
settings of their own commits. What affects both runs of a pair, such as a busy machine, cancels out. The exit status
is 1 after a loss of more than 5 % that the pairs can tell from noise: even the lower bound of the loss is above it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import comb
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.workers import ROOT

LOSS = 0.05
MEASURES = ("enqueue", "drain")
TAKEN = ("jobqueue", "benchmarks", "manage.py")
# Fewer cannot exclude anything with 95 % confidence.
PAIRS_MIN = 6


class Interval(NamedTuple):
    """The median of the ratios new / old, and the bounds between which it lies with 95 % confidence."""

    low: float
    middle: float
    high: float

    @property
    def is_loss(self) -> bool:
        """Whether the pairs can tell a loss of more than LOSS from noise."""
        return self.high < 1 - LOSS


def interval(ratios: Sequence[float]) -> Interval:
    """By the sign test, so a pair that something disturbed counts as one pair. Raises ValueError below PAIRS_MIN."""
    count = len(ratios)
    if count < PAIRS_MIN:
        raise ValueError(f"{count} pairs are too few, {PAIRS_MIN} are the least")
    ordered, left, below = sorted(ratios), 0, 0.0
    while (below := below + comb(count, left) / 2**count) <= 0.025:
        left += 1
    return Interval(ordered[left - 1], median(ordered), ordered[count - left])


def default_base() -> str:
    """Where this branch left main; on main itself the commit before the last one, or the last one if files differ."""
    for main in ("main", "origin/main"):
        if _git("rev-parse", "--verify", "--quiet", main):
            base = _git("merge-base", "HEAD", main)
            break
    else:
        base = _git("rev-parse", "HEAD")
    if base == _git("rev-parse", "HEAD") and not _git("status", "--porcelain", "--", "jobqueue"):
        return _git("rev-parse", "HEAD~1")
    return base


class Side:
    """One version of the package in a folder of its own, and the process that measures it."""

    def __init__(self, folder: Path, name: str, kind: str, jobs: int) -> None:
        self.folder, self.name, self.kind, self.jobs = folder / name, name, kind, jobs
        self.folder.mkdir()

    def take(self, commit: str) -> None:
        """Put the package and its benchmarks into the folder, as they are in `commit`, or here if that is empty."""
        if commit:
            archive = subprocess.run(["git", "archive", commit, *TAKEN], cwd=ROOT, check=True, capture_output=True)
            subprocess.run(["tar", "-x", "-C", str(self.folder)], input=archive.stdout, check=True)
        else:
            for name in TAKEN:
                (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, self.folder / name)
        shutil.copy(ROOT / "benchmarks" / "side.py", self.folder / "benchmarks")

    def start(self) -> None:
        """Make its database."""
        url = str(self.folder) if self.kind == "sqlite" else os.environ[f"JOBQUEUE_TEST_{self.kind.upper()}_URL"]
        name = f"jobqueue_check_{os.getpid()}_{self.name}"
        env = {**os.environ, "BENCH_DB": self.kind, "BENCH_URL": url, "BENCH_NAME": name, "PYTHONPATH": "."}
        env |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "benchmarks.side", str(self.jobs)]
        self.process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, what: str) -> float:
        """Jobs a second. Raises RuntimeError if its process could not measure that."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that measures {self.name} has ended: see above")
        return float(answer)

    def close(self) -> None:
        """Drop its database."""
        self.process.communicate()


def compare(old: Side, new: Side, seconds: float, pairs: int) -> dict[str, list[float]]:
    """The ratios new / old of each measure, by pair: `pairs` pairs, or as many as `seconds` allow, if that is more."""
    found: dict[str, list[float]] = {what: [] for what in MEASURES}
    for side in (old, new):  # the first run fills caches
        for what in MEASURES:
            side.measure(what)
    begun, number = time.monotonic(), 0
    while number < pairs or time.monotonic() - begun < seconds:
        order = (old, new) if number % 2 == 0 else (new, old)
        for what in MEASURES:
            rate = {side.name: side.measure(what) for side in order}
            found[what].append(rate[new.name] / rate[old.name])
        number += 1
    return found


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Print the interval of each measure; exit status 1 after a loss."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    parser.add_argument("--base", default="", metavar="COMMIT", help="what to compare with, by default main")
    parser.add_argument("--db", default="mysql", choices=("mysql", "mariadb", "postgres", "sqlite"))
    parser.add_argument("--seconds", type=float, default=150, help="how long to measure")
    parser.add_argument("--jobs", type=int, default=8000, help="how many jobs each drain has")
    options = parser.parse_args()
    base = options.base or default_base()
    with tempfile.TemporaryDirectory(prefix="jobqueue-check-") as folder:
        old, new = (Side(Path(folder), name, options.db, options.jobs) for name in ("old", "new"))
        old.take(base)
        new.take("")
        for side in (old, new):
            side.start()
        try:
            found = compare(old, new, options.seconds, PAIRS_MIN)
        finally:
            for side in (old, new):
                side.close()
    print(f"The working tree compared with {_git('log', '-1', '--format=%h %s', base) or base}, on {options.db}:")
    intervals = {what: interval(ratios) for what, ratios in found.items()}
    for what, (low, middle, high) in intervals.items():
        verdict = f"a loss of more than {LOSS:.0%}" if intervals[what].is_loss else "no loss that the pairs can show"
        print(f"{what}: {middle:.3f} of its speed ({low:.3f} to {high:.3f}, {len(found[what])} pairs): {verdict}")
    return int(any(each.is_loss for each in intervals.values()))


if __name__ == "__main__":
    sys.exit(main())
