"""python -m tests.proofs.history.mutants [NUMBER ...] [--broad]: break the code on purpose, one place at a time.

Each mutant of the catalogue is one replacement in one file. Its command, one run of pytest on one database, has to fail
within a minute, or the suite would not notice. With --broad a mutant that its own tests let pass is tried against the
folders of BROAD, to find the test that notices. What was found is kept in .prove/ as long as
the code and these tests stay the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired

from tests.proofs.figures import write
from tests.proofs.freshness import fingerprint
from tests.proofs.history.catalogue import MUTANTS, Mutant
from tests.proofs.history.trees import ROOT, run_tests, unpack

KEPT = ROOT / ".prove" / "mutants"
LIMIT_SECONDS = 60.0
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


def apply(mutant: Mutant, folder: Path) -> None:
    """Break the copy of the code in `folder`. The place must be there exactly once, or the catalogue is out of date."""
    path = folder / mutant.file
    code = path.read_text()
    assert code.count(mutant.old) == 1, (
        f"mutant {mutant.number}: {mutant.old!r} is {code.count(mutant.old)} times there"
    )
    path.write_text(code.replace(mutant.old, mutant.new))


def try_one(mutant: Mutant, *, broad: bool) -> dict[str, object]:
    """What its command says: noticed by which test, and in how many seconds."""
    same = hashlib.sha256(repr(replace(mutant, number=0)).encode()).hexdigest()[:12]
    files = (test.partition("::")[0] for test in mutant.tests)
    kept = KEPT / f"{same}-{fingerprint(('jobqueue', *files))}.json"
    if kept.exists() and not broad:
        return dict(json.loads(kept.read_text()))
    with tempfile.TemporaryDirectory(prefix="jobqueue-mutant-") as name:
        folder = Path(name)
        unpack("HEAD", folder)
        healthy = run_tests(folder, mutant.database, mutant.tests, timeout_seconds=5 * LIMIT_SECONDS)
        apply(mutant, folder)
        found = _run(mutant, folder, list(mutant.tests), LIMIT_SECONDS)
        if not found["noticed"] and broad:
            found = _run(mutant, folder, BROAD, 20 * LIMIT_SECONDS)
    found["healthy"] = bool(healthy) and all(case.outcome != "failed" for case in healthy or [])
    KEPT.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found


def _run(mutant: Mutant, folder: Path, tests: list[str], limit_seconds: float) -> dict[str, object]:
    begun = time.monotonic()
    try:
        cases = run_tests(folder, mutant.database, ["-x", *tests], timeout_seconds=limit_seconds)
    except TimeoutExpired:
        by = f"{tests[0]}, which does not end within {limit_seconds:.0f} s"
    else:
        failed = [case.test for case in cases or [] if case.outcome == "failed"]
        by = failed[0] if failed else "the package cannot be imported" if cases is None else ""
    return {"noticed": bool(by), "by": by, "seconds": round(time.monotonic() - begun)}


def main(arguments: list[str]) -> int:
    """Write the rows of the page; exit status 1 if a mutant lives, or if its tests fail on the healthy code."""
    numbers = {int(word) for word in arguments if word.isdigit()}
    chosen = [mutant for mutant in MUTANTS if not numbers or mutant.number in numbers]
    needed = {mutant.database for mutant in chosen} - {"sqlite"}
    missing = sorted(name for name in needed if f"JOBQUEUE_TEST_{name.upper()}_URL" not in os.environ)
    if missing:
        sys.exit(f"{', '.join(missing)} needed: run this under python -m tests.servers run --")
    alive = 0
    for mutant in chosen:
        found = try_one(mutant, broad="--broad" in arguments)
        alive += not found["noticed"] or not found["healthy"]
        by = f"`{found['by']}`" if found["noticed"] else "**nothing**"
        by += "" if found["healthy"] else " **(fails on healthy code)**"
        row = {"#": mutant.number, "what is broken": mutant.what, "place": f"`{mutant.file}`", "noticed by": by}
        print(mutant.database, *row.values(), f"{found['seconds']} s", flush=True)
        write("Each of them, with the test that noticed first.", mutant.database, [row | {"seconds": found["seconds"]}])
    noticed = f"{len(chosen) - alive} of {len(chosen)}"
    print(f"{noticed} are noticed")
    write("Guards that were taken out of the code, one at a time.", "all", [{"noticed": noticed}])
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
