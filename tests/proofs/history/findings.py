"""python -m tests.proofs.history.findings [DATABASE ...]: each fixed bug with its tests, before its fix and now.

A commit that fixes a confirmed bug says so in a trailer, `Finding: H2`, and its tests bear the mark finding("H2"). The
tests of that commit are run on the code of its parent, where every one has to fail, and on the code of now, where every
one has to pass, on each database. `Said: R5 docs/howto/page.md` names the page that answers a finding without code.
`Better-test-of: COMMIT` takes the tests of the commit that says so for that fix; `Takes-back: COMMIT` drops a fix.
`Fixed-by: COMMIT H3` adds a finding that COMMIT fixed and did not name. `Before: COMMIT` beside Better-test-of names
the code on which those tests have to fail. It is for a series that was cut by rooms, whose commits do not run alone.

What was found on the code of before is kept in .prove/, so a run that is broken off goes on where it was.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired

from tests.proofs.figures import write
from tests.proofs.freshness import fingerprint
from tests.proofs.history.trees import ROOT, Case, git, run_tests, unpack

KEPT = ROOT / ".prove" / "findings"
RUN_SECONDS = 2700.0
#: the bug cannot be there
NOT_CONCERNED = {
    ("A4", "postgres"): "psycopg's binary form has read the whole result when a query returns",
    ("item-1", "sqlite"): "it has no list of processes",
}
DATABASES = ("sqlite", "mysql", "mariadb", "postgres")


@dataclass(frozen=True)
class Fix:
    """A commit and the findings that it fixed; its tests are those of the commit `tests`, and fail on `before`."""

    commit: str
    title: str
    findings: tuple[str, ...]
    tests: str
    before: str

    def files(self) -> list[str]:
        """The test files that mark a test with one of these findings."""
        words = "|".join(map(re.escape, self.findings))
        try:
            found = git("grep", "-lE", rf"""finding\("({words})"\)""", self.tests, "--", "tests")
        except Exception:  # git grep ends with 1 where nothing was found
            return []
        return [line.partition(":")[2] for line in found.splitlines()]

    def brings(self, case: Case) -> bool:
        """Whether the test is of this commit: another commit for the same finding may have brought it before."""
        file, _, name = case.test.partition("::")
        name = name.partition("[")[0]
        return _function(self.before, file, name) != _function(self.tests, file, name)


@cache
def _functions(commit: str, file: str) -> dict[str, str]:
    try:
        tree = ast.parse(git("show", f"{commit}:{file}"))
    except Exception:  # git show ends with 128 where there is no such file
        return {}
    return {node.name: ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _function(commit: str, file: str, name: str) -> str | None:
    return _functions(commit, file).get(name)


def fixes() -> list[Fix]:
    """Oldest first."""
    found, better, earlier, also = [], {}, {}, defaultdict(list)
    taken_back = re.findall(r"^Takes-back: (\S+)$", git("log", "--format=%b"), re.MULTILINE)
    for entry in git("log", "--reverse", "--format=%H%x1f%s%x1f%b%x1e").split("\x1e"):
        if entry.strip():
            # Python takes the separators for blanks, so that before an empty body may be gone.
            commit, title, *body = entry.strip().split("\x1f")
            numbers = tuple(dict.fromkeys(re.findall(r"^Finding: (\S+)$", "".join(body), re.MULTILINE)))
            improved = re.findall(r"^Better-test-of: (\S+)$", "".join(body), re.MULTILINE)
            better |= {git("rev-parse", fixed): commit for fixed in improved}
            for before in re.findall(r"^Before: (\S+)$", "".join(body), re.MULTILINE):
                earlier |= {git("rev-parse", fixed): git("rev-parse", before) for fixed in improved}
            for fixed, number in re.findall(r"^Fixed-by: (\S+) (\S+)$", "".join(body), re.MULTILINE):
                also[git("rev-parse", fixed)].append(number)
            if numbers and not improved and commit not in taken_back:
                found.append(Fix(commit, title, numbers, commit, f"{commit}^"))
    return [
        replace(
            fix,
            findings=tuple(dict.fromkeys((*fix.findings, *also[fix.commit]))),
            tests=better.get(fix.commit, fix.tests),
            before=earlier.get(fix.commit, fix.before),
        )
        for fix in found
    ]


def pages() -> dict[str, list[str]]:
    """The pages that answer a finding in words."""
    found = defaultdict(list)
    for number, page in re.findall(r"^Said: (\S+) (\S+)$", git("log", "--format=%b"), re.MULTILINE):
        found[number].append(page)
    return found


def before(fix: Fix, database: str) -> list[Case] | None:
    """The marked tests of `fix` on the code before it."""
    own = "" if fix.tests == fix.commit else f"{fix.commit[:12]}-"
    kept = KEPT / f"{own}{fix.tests}-{database}.json"
    if kept.exists():
        return [Case(c["test"], c["outcome"], tuple(c["findings"])) for c in json.loads(kept.read_text())]
    files = fix.files()
    if not files:
        return []
    with tempfile.TemporaryDirectory(prefix="jobqueue-before-") as name:
        folder = Path(name)
        unpack(fix.before, folder)
        unpack(fix.tests, folder, "tests")
        options = ["-m", "finding", "--timeout", "200", "--continue-on-collection-errors", *files]
        try:
            cases = run_tests(folder, database, options, timeout_seconds=RUN_SECONDS)
        except TimeoutExpired as error:
            print(error, file=sys.stderr)
            return None
    if cases is not None:
        cases = [case for case in cases if set(case.findings) & set(fix.findings) and fix.brings(case)]
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([asdict(case) for case in cases]))
    return cases


def now(database: str) -> list[Case]:
    """Every marked test on the code of now."""
    kept = KEPT / f"now-{fingerprint(('jobqueue', 'tests'))}-{database}.json"
    if kept.exists():
        return [Case(c["test"], c["outcome"], tuple(c["findings"])) for c in json.loads(kept.read_text())]
    cases = run_tests(ROOT, database, ["-m", "finding"], timeout_seconds=RUN_SECONDS)
    if cases is None:
        sys.exit("the tests cannot be collected")
    KEPT.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps([asdict(case) for case in cases]))
    return cases


def main(databases: Iterable[str]) -> int:
    """Write the rows of the page; exit status 1 if a test did not fail before, or does not pass now."""
    wrong = [database for database in databases if _one(database)]
    return int(bool(wrong))


def _one(database: str) -> bool:
    """Whether a row of this database is wrong."""
    present, rows, wrong, down, up = now(database), [], [], 0, 0
    for fix in fixes():
        earlier = before(fix, database)
        for number in fix.findings:
            row, is_right = _row(fix, number, earlier, present, database)
            rows.append(row)
            wrong += [] if is_right else [f"{number} {fix.commit[:12]}: {row}"]
            down += row.get("failed", 0)
            up += row.get("pass", 0)
    answered = [{"finding": n, "answered in words by": ", ".join(at)} for n, at in sorted(pages().items())]
    write("Fixed bugs: tests that fail without the fix, and pass with it.", database, [
        {"bugs": len(rows), "without their fix / with it": f"{down} fail / {up} pass"}
    ])  # fmt: skip
    about = ("finding", "fixed by", "tests", "failed before", "pass now")
    write("Each of them.", database, [{name: row[name] for name in about} for row in rows])
    write("Findings that needed no code.", database, answered)
    print(f"{database}: {len(rows)} rows", *wrong, sep="\n", file=sys.stderr)
    return bool(wrong)


def _row(fix: Fix, number: str, earlier: list[Case] | None, present: list[Case], database: str) -> tuple[dict, bool]:
    """The row of a finding, and whether it is as it should be."""
    row = {"finding": number, "fixed by": f"`{fix.commit[:12]}` {fix.title}", "tests": "-"}
    row |= {"failed before": "-", "pass now": "-"}
    if earlier is None:
        return row | {"failed before": "no result"}, False
    if reason := NOT_CONCERNED.get((number, database)):
        return row | {"failed before": f"not concerned, {reason}"}, True
    cases = [case for case in earlier if number in case.findings and case.outcome != "skipped"]
    if not cases:
        # Its tests may be those of another database, but some must be there.
        return row, bool(fix.files())
    names = dict.fromkeys(re.sub(r"\[.*", "", case.test) for case in cases)
    down = sum(case.outcome == "failed" for case in cases)
    ran = [case for case in present if number in case.findings and case.outcome != "skipped"]
    up = sum(case.outcome == "passed" for case in ran)
    row |= {"tests": "<br>".join(f"`{name}`" for name in names), "failed": down, "pass": up}
    code = git("rev-parse", "--short=12", fix.before)
    row |= {"failed before": f"{down}/{len(cases)} on `{code}`", "pass now": f"{up}/{len(ran)}"}
    return row, down == len(cases) and bool(ran) and up == len(ran)


if __name__ == "__main__":
    given = [name for name in DATABASES if name == "sqlite" or f"JOBQUEUE_TEST_{name.upper()}_URL" in os.environ]
    sys.exit(main(sys.argv[1:] or given))
