"""python -m tests.proofs.history.mutants [NUMBER ...] [--broad]: break the code on purpose, one place at a time.

Each mutant of the catalogue changes one function. One of its tests, in the short run of its database, has to fail, or
the suite would not notice. With --broad a mutant that its own tests let pass is tried against the folders of BROAD, to
find the test that notices. Two databases are used at a time. What was found is kept in .prove/ until the mutant, its
file or its tests change, so that a run that is broken off goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from tests.proofs.figures import write
from tests.proofs.history.catalogue import MUTANTS, Mutant
from tests.proofs.history.trees import ROOT, git, run_tests, unpack

KEPT = ROOT / ".prove" / "mutants"
HEAD = "| # | what is broken | place | noticed by | database | seconds |\n| --- | --- | --- | --- | --- | --- |"
#: of healthy code; broken code may take three times as long as healthy code, and this
HEALTHY_SECONDS, MORE_SECONDS = 900.0, 60.0
BROAD = [
    "tests/producer",
    "tests/transitions",
    "tests/ordering",
    "tests/tasks",
    "tests/worker",
    "tests/models",
    "tests/db",
    "tests/context",
    "tests/wakeup",
    "tests/races",
    "tests/locks",
    "tests/outbox",
    "tests/idempotency",
    "tests/unit",
    "tests/public",
]


@dataclass(frozen=True)
class Run:
    """One run of pytest: the first test that failed, or what else is wrong; "" if all passed."""

    by: str
    seconds: float


@dataclass(frozen=True)
class Found:
    """What became of a mutant: noticed by which test, and whether its tests pass on healthy code."""

    by: str
    healthy: bool
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether the suite notices the mutant, and nothing else."""
        return bool(self.by) and self.healthy


class Lane:
    """A folder with the code of HEAD, in which mutants are tried on one database, one after another."""

    def __init__(self, database: str, folder: Path, *, broad: bool) -> None:
        self.database, self.folder, self.broad = database, folder, broad
        unpack("HEAD", folder)

    def tries(self, mutants: Sequence[tuple[int, Mutant]]) -> Iterator[tuple[int, Found]]:
        """Each mutant by its number, with what was found now or by an earlier run."""
        for number, mutant in mutants:
            kept = KEPT / f"{self._digest(asdict(mutant), mutant.file, *mutant.tests)}.json"
            if kept.exists() and not self.broad:
                found = Found(**json.loads(kept.read_text()))
            else:
                found = self._try(mutant)
                if found.is_good:
                    # Others are tried again: the short run may have other tests by then.
                    _keep(kept, found)
            print(f"{number}: {found.by or 'nothing'}, {found.seconds:.0f} s", file=sys.stderr, flush=True)
            yield number, found

    def _try(self, mutant: Mutant) -> Found:
        """Its tests in turn, until one of them notices."""
        healthy, seconds = True, 0.0
        for path in [*mutant.tests, *(BROAD if self.broad else [])]:
            before = self._healthy(path)
            after = self._broken(mutant, path, 3 * before.seconds + MORE_SECONDS)
            healthy, seconds = healthy and not before.by, seconds + after.seconds
            if after.by:
                return Found(after.by, healthy, seconds)
        return Found("", healthy, seconds)

    def _healthy(self, path: str) -> Run:
        """The tests on healthy code: once for all mutants that name them."""
        kept = KEPT / f"healthy-{self._digest([self.database, git('rev-parse', 'HEAD:jobqueue')], path)}.json"
        if kept.exists():
            return Run(**json.loads(kept.read_text()))
        found = self._run([path], HEALTHY_SECONDS)
        _keep(kept, found)
        return found

    def _broken(self, mutant: Mutant, path: str, limit_seconds: float) -> Run:
        file = self.folder / mutant.file
        code = file.read_text()
        file.write_text(mutant.broken(code))
        try:
            return self._run(["-x", path], limit_seconds)
        finally:
            file.write_text(code)

    def _run(self, arguments: list[str], limit_seconds: float) -> Run:
        begun = time.monotonic()
        try:
            cases = run_tests(self.folder, self.database, arguments, timeout_seconds=limit_seconds, short=True)
        except TimeoutExpired:
            by = f"{arguments[-1]}, which does not end within {limit_seconds:.0f} s"
        else:
            failed = [case.test for case in cases or [] if case.outcome == "failed"]
            by = failed[0] if failed else f"{arguments[-1]}, which cannot be collected" if cases is None else ""
        return Run(by, round(time.monotonic() - begun, 1))

    def _digest(self, facts: object, *paths: str) -> str:
        """A name for what was found with these files and the files in these folders as they are."""
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for path in paths:
            place = self.folder / path
            for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
                digest.update(f"\0{file.relative_to(self.folder)}\0{file.read_text()}".encode())
        return digest.hexdigest()[:32]


def _keep(path: Path, found: Run | Found) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(found)))


def try_all(chosen: Sequence[tuple[int, Mutant]], *, broad: bool) -> dict[int, Found]:
    """What was found of each mutant, by number. Two databases at a time, so that both cores have work."""
    by_database: dict[str, list[tuple[int, Mutant]]] = {}
    for number, mutant in chosen:
        by_database.setdefault(mutant.database, []).append((number, mutant))

    def work(database: str) -> list[tuple[int, Found]]:
        with tempfile.TemporaryDirectory(prefix="jobqueue-mutant-") as name:
            return [*Lane(database, Path(name), broad=broad).tries(by_database[database])]

    with ThreadPoolExecutor(2) as pool:
        longest_first = sorted(by_database, key=lambda database: -len(by_database[database]))
        return dict(pair for pairs in pool.map(work, longest_first) for pair in pairs)


def main(arguments: list[str]) -> int:
    """Print and write a row for each mutant; exit status 1 if one lives, or its tests fail on healthy code."""
    numbers = {int(word) for word in arguments if word.isdigit()}
    chosen = [(number, one) for number, one in enumerate(MUTANTS, 1) if not numbers or number in numbers]
    for number, mutant in chosen:
        if mutant.database != "sqlite" and f"JOBQUEUE_TEST_{mutant.database.upper()}_URL" not in os.environ:
            sys.exit(f"mutant {number} needs {mutant.database}: run this under python -m tests.servers run --")
    found = try_all(chosen, broad="--broad" in arguments)
    print(HEAD)
    for number, mutant in chosen:
        one = found[number]
        by = f"`{one.by}`" if one.by else "**nothing**"
        by += "" if one.healthy else " **(fails on healthy code)**"
        row = {"#": number, "what is broken": mutant.what, "place": f"`{mutant.place}`", "noticed by": by}
        print(f"| {' | '.join(map(str, [*row.values(), mutant.database, f'{one.seconds:.0f}']))} |")
        write("Each of them, with the test that noticed first.", mutant.database, [row | {"seconds": one.seconds}])
    noticed = f"{sum(one.is_good for one in found.values())} of {len(found)}"
    print(f"{noticed} are noticed")
    write("Guards that were taken out of the code, one at a time.", "all", [{"noticed": noticed}])
    return int(not all(one.is_good for one in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
