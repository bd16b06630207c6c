"""python -m tests.proofs.freshness [--fail]: for each page of evidence, how many commits have changed what it proves.

A page names the commit that it was made on: a proof in the line that begins with "Command:", the page of benchmarks in
each table. A commit since then counts if it changes the content of a file about which
the page proves something. Moves, comments, docstrings and imports are no content. With --fail the exit status is 1 if a
commit counts, if a page names a commit that this repository does not have, or if a page is missing or was made by a
small run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ("jobqueue/conf/", "jobqueue/transactions.py", "jobqueue/db/", "jobqueue/models/", "tests/proofs/running.py")
ENGINE = (*SHARED, "jobqueue/producer", "jobqueue/transitions", "jobqueue/ordering", "jobqueue/worker")
#: the paths that a page proves something about, and those of the tests that make it
PROVED = {
    "docs/proof/core.md": (*ENGINE, "jobqueue/wakeup", "jobqueue/maintenance", "tests/proofs/test_", "tests/faults"),
    "docs/proof/operations.md": (
        *(*ENGINE, "jobqueue/locks", "jobqueue/idempotency", "jobqueue/outbox"),
        "tests/proofs/operations",
    ),
    "docs/proof/dashboard.md": (
        *(*SHARED, "jobqueue/admin", "jobqueue/stats", "jobqueue/templates", "jobqueue/templatetags"),
        *("jobqueue/masking", "jobqueue/cli", "jobqueue/bulk_verbs", "tests/proofs/dashboard"),
        "tests/faults/test_bulk_verbs_walk",
    ),
    "docs/proof/tasks.md": (*ENGINE, "jobqueue/tasks", "jobqueue/context", "tests/proofs/tasks"),
    "docs/proof/failures.md": (
        *(*ENGINE, "jobqueue/failures", "jobqueue/dead_letters", "jobqueue/backoff.py", "jobqueue/tasks"),
        *("tests/proofs/failures", "tests/failures/real", "tests/faults/test_redrive_walk"),
    ),
    "docs/proof/flow.md": (
        *(*ENGINE, "jobqueue/gates", "jobqueue/flow", "jobqueue/maintenance/gate_sweep.py", "jobqueue/tasks"),
        *(
            "jobqueue/maintenance/queue_levels.py",
            "tests/proofs/flow",
            "tests/faults/test_flow_walk",
            "tests/observer.py",
        ),
    ),
    "docs/proof/schedules.md": (
        *(*ENGINE, "jobqueue/retention", "jobqueue/maintenance/pruner.py", "jobqueue/cli/prune.py"),
        *("tests/proofs/schedules", "tests/faults/test_retention_walk"),
    ),
    "docs/proof/locks.md": (
        *(*SHARED, "jobqueue/locks", "jobqueue/lockstats", "jobqueue/idempotency", "jobqueue/allocate.py"),
        *("jobqueue/fencing.py", "tests/proofs/locks"),
    ),
    "docs/proof/outbox.md": (*SHARED, "jobqueue/outbox", "jobqueue/idempotency", "tests/proofs/outbox"),
    "docs/proof/demo.md": (
        *(*SHARED, "jobqueue/locks", "jobqueue/allocate.py", "jobqueue/fencing.py", "demo_project/serials"),
        *("demo_project/auction", "tests/proofs/demo"),
    ),
    "docs/proof/findings.md": ("jobqueue", "tests/proofs/history/findings.py"),
    "docs/proof/mutants.md": ("jobqueue", "tests/proofs/history/mutants.py", "tests/proofs/history/catalogue.py"),
    "docs/proof/matrix.md": ("jobqueue", "tests/matrix.py"),
    "docs/benchmarks.md": (*ENGINE, "jobqueue/locks", "jobqueue/outbox", "jobqueue/tasks", "benchmarks"),
}
WORDS_AND_LOOKS = (".md", ".po", ".mo", ".css", ".svg")
COMMIT = re.compile(r"\bcommit `?([0-9a-f]{7,40})\b")


@dataclass(frozen=True)
class Change:
    """A file before and after a commit; no path where it was added or deleted."""

    before: str
    after: str
    blobs: tuple[str, str]

    def within(self, paths: tuple[str, ...]) -> bool:
        """Whether the file lies below one of `paths`, or did."""
        return any(path.startswith(paths) for path in (self.before, self.after) if path)

    def counts(self) -> bool:
        """Whether more than moves, comments, docstrings and imports has changed."""
        if self.blobs[0] == self.blobs[1] or (self.after or self.before).endswith(WORDS_AND_LOOKS):
            return False
        return _content(self.before, self.blobs[0]) != _content(self.after, self.blobs[1])


def git(*arguments: str) -> str:
    """What a git command in this repository prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


@cache
def _content(path: str, blob: str) -> str:
    if not blob.strip("0"):
        return ""
    data = subprocess.run(["git", "cat-file", "blob", blob], cwd=ROOT, check=True, capture_output=True).stdout
    return code_of(data.decode()) if path.endswith(".py") else data.hex()


def code_of(source: str) -> str:
    """Python code without comments, docstrings and imports."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_no_content(part)]
    return ast.dump(tree)


def _is_no_content(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


@cache
def changes(commit: str) -> list[Change]:
    """What a commit, or a range of two, changes."""
    ends = commit.split("..") if ".." in commit else [f"{commit}^", commit]
    words = git("diff-tree", "-r", "-M40", "-z", "--raw", *ends).split("\0")
    return list(_parsed(iter(words)))


def _parsed(words: Iterator[str]) -> Iterator[Change]:
    for word in words:
        if not word.startswith(":"):
            continue
        _, _, old, new, kind = word.split(" ")
        before = next(words)
        after = next(words) if kind[0] in "RC" else before
        yield Change("" if kind == "A" else before, "" if kind == "D" else after, (old, new))


def commits_since(made_on: str, paths: tuple[str, ...]) -> list[str]:
    """The commits after `made_on` that change the content of `paths`, newest first; none if all of it was undone."""

    def changed(commit: str) -> bool:
        return any(change.within(paths) and change.counts() for change in changes(commit))

    if not changed(f"{made_on}..HEAD"):
        return []
    return [commit for commit in git("rev-list", "--no-merges", f"{made_on}..HEAD").split() if changed(commit)]


def of_page(text: str, paths: tuple[str, ...]) -> tuple[str, int | None]:
    """The oldest commit that a page names, and how many commits count since; None if the repository has not got it."""
    commands = [line for line in text.splitlines() if line.startswith("Command:")]
    named = list(dict.fromkeys(COMMIT.findall("\n".join(commands) or text)))
    counts = {}
    for commit in named:
        try:
            git("rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}")
        except subprocess.CalledProcessError:
            return commit, None
        counts[commit] = len(commits_since(commit, paths))
    oldest = max(counts, key=lambda commit: counts[commit])
    return oldest, counts[oldest]


def main(arguments: list[str]) -> int:
    """Print a line for each page; with --fail return 1 if one is stale or missing."""
    stale = 0
    for page, paths in PROVED.items():
        path = ROOT / page
        if not path.exists():
            stale += 1
            print(f"{page}: not made yet")
            continue
        text = path.read_text()
        if "JOBQUEUE_PROVE_SMALL" in text:
            stale += 1
            print(f"{page}: made by a small run")
            continue
        commit, count = of_page(text, paths)
        stale += count != 0
        since = {None: "which this repository does not have", 0: "fresh"}.get(
            count, f"{count} commits since change what it proves"
        )
        print(f"{page}: commit {commit[:12]}, {since}")
    return int("--fail" in arguments and stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
