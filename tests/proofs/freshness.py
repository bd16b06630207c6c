"""python -m tests.proofs.freshness [--release | --remove]: each page of evidence and each figure that quotes one.

A page names the commit that each of its parts was measured on. It is *stale* if what a part proves has changed since,
as tests.proofs.table says what that is: its files and folders, the tests and their helpers. Moves, comments, docstrings
and imports are no change, nor is one that was taken back.

A figure that a page outside of docs/proof quotes stands between two hidden comments,

    <!-- figure: docs/proof/core.md 0123456789ab -->
    ...
    <!-- figure: end -->

with the commit of the page at the time. It is stale if its page is stale or not there, or has been made anew since. A
decision record may keep a figure that was measured for the decision, without such comments, if it names its commit and
its date itself.

What is stale gives the exit status 1. A page that is missing, or lacks a part, does not, nor does an empty figure: they
are made once, at the end of a change; with --release they count too. --remove deletes what is stale: pages with their
pictures, and figures.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.proofs.model import Page
from tests.proofs.table import PAGES

ROOT = Path(__file__).resolve().parents[2]
WORDS_AND_LOOKS = (".md", ".po", ".mo", ".css", ".svg", ".png")
COMMIT = re.compile(r"\bcommit `?([0-9a-f]{7,40})\b")
#: a row of the table of parts: part, databases, commit
PART = re.compile(r"^\| (\w+) \| ([a-z, ]+) \| `([0-9a-f]{7,40})` \|", re.MULTILINE)
#: page, commit, what is quoted
FIGURE = re.compile(r"^<!-- figure: (\S+)(?: ([0-9a-f]{7,40}))? -->\n(.*?)^<!-- figure: end -->$", re.DOTALL | re.M)
MARK = re.compile(r"^[ \t]*<!-- figure:.*$", re.MULTILINE)
UNKNOWN = "nothing in tests/proofs/table.py makes it"
FRESH, STALE, MISSING = "fresh", "stale", "missing"
Paths = tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A file before and after a commit; no path where it was added or deleted."""

    before: str
    after: str
    blobs: tuple[str, str]

    def within(self, paths: Paths) -> bool:
        """Whether the file is one of `paths`, or lies below one, or did."""
        return any(below(path, paths) for path in (self.before, self.after) if path)

    def counts(self) -> bool:
        """Whether more than moves, comments, docstrings and imports has changed."""
        if self.blobs[0] == self.blobs[1] or (self.after or self.before).endswith(WORDS_AND_LOOKS):
            return False
        return content(self.before, self.blobs[0]) != content(self.after, self.blobs[1])


@dataclass(frozen=True)
class Verdict:
    """What is said of a page or a quoted figure."""

    what: str
    state: str
    says: str

    def __str__(self) -> str:
        return f"{self.what}: {self.says}"


def git(*arguments: str) -> str:
    """What a git command in this repository prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def below(path: str, paths: Paths) -> bool:
    """Whether `path` is one of `paths` or lies below one."""
    return any(path == each or path.startswith(f"{each}/") for each in paths)


@cache
def content(path: str, blob: str) -> str:
    """What counts of a file."""
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


def fingerprint(paths: Paths) -> str:
    """The same for two commits between which nothing of `paths` has changed but what does not count."""
    found = []
    for entry in git("ls-tree", "-r", "-z", "HEAD", "--", *paths).split("\0"):
        about, _, path = entry.partition("\t")
        if path and not path.endswith(WORDS_AND_LOOKS):
            found.append(hashlib.sha256(content(path, about.split(" ")[2]).encode()).hexdigest())
    # Sorted by what the files hold, so that a move changes nothing.
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:12]


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


def commits_since(made_on: str, paths: Paths) -> list[str]:
    """The commits after `made_on` that change the content of `paths`, newest first; none if all of it was undone."""

    def changed(commit: str) -> bool:
        return any(change.within(paths) and change.counts() for change in changes(commit))

    if not changed(f"{made_on}..HEAD"):
        return []
    return [commit for commit in git("rev-list", "--no-merges", f"{made_on}..HEAD").split() if changed(commit)]


def of_page(page: Page) -> Verdict:
    """Whether a page is there, has all its parts, and is as old as the last change of what it proves, or younger."""
    path = ROOT / page.file
    if not path.exists():
        return Verdict(page.file, MISSING, "not made yet")
    text = path.read_text()
    made = PART.findall(text)
    if made:
        rows = [(name, on, commit) for name, databases, commit in made for on in databases.split(", ")]
        wrong = [found for row in rows if (found := _wrong_part(page, *row))]
        there = {(name, on) for name, on, _ in rows}
        lacking = [f"{part.name} on {on}" for part in page.parts for on in part.minutes if (part.name, on) not in there]
    else:
        named = list(dict.fromkeys(COMMIT.findall(text)))
        wrong = [found for commit in named if (found := _since(commit, page.proves))]
        wrong += [] if named else ["it names no commit"]
        lacking = []
    if wrong:
        return Verdict(page.file, STALE, f"stale: {'; '.join(dict.fromkeys(wrong))}")
    if lacking:
        return Verdict(page.file, MISSING, f"fresh, and these parts were not made yet: {', '.join(lacking)}")
    return Verdict(page.file, FRESH, "fresh")


def _wrong_part(page: Page, name: str, database: str, commit: str) -> str:
    part = page.part(name)
    if part is None or database not in part.minutes:
        return f"nobody proves {name} on {database} any more"
    since = _since(commit, page.depends(part))
    return f"{name}, {since}" if since else ""


@cache
def _since(commit: str, paths: Paths) -> str:
    try:
        git("merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError:
        return f"commit {commit[:12]} is not among those that lead to this one"
    count = len(commits_since(commit, paths))
    return f"commit {commit[:12]}, {count} commits since change what it proves" if count else ""


def of_figures(path: Path, pages: dict[str, Verdict]) -> list[Verdict]:
    """What is said of each quoted figure of a file; `pages` are the pages of evidence by their paths."""
    text = path.read_text()
    found = []
    for match in FIGURE.finditer(text):
        page, commit, words = match.groups()
        where = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}, a figure of {page}"
        found.append(_figure(where, page, commit, words.strip(), pages))
    if len(MARK.findall(text)) != 2 * len(found):
        found.append(Verdict(str(path.relative_to(ROOT)), STALE, "a hidden comment of a figure has no other end"))
    return found


def _figure(where: str, page: str, commit: str | None, words: str, pages: dict[str, Verdict]) -> Verdict:
    about = pages.get(page)
    if about is None:
        return Verdict(where, STALE, f"stale: {UNKNOWN}")
    if not words:
        return Verdict(where, MISSING, "nothing is quoted yet")
    path = ROOT / page
    if about.state == STALE or not path.exists():
        return Verdict(where, STALE, f"stale, as its page is {'stale' if path.exists() else 'not there'}")
    named = [*(made for *_, made in PART.findall(path.read_text())), *COMMIT.findall(path.read_text())]
    if commit is None or not any(each.startswith(commit) or commit.startswith(each) for each in named):
        return Verdict(where, STALE, f"stale: it quotes commit {commit}, of which its page is not")
    return Verdict(where, FRESH, "fresh")


def quoting() -> list[Path]:
    """The files that may quote a figure."""
    proofs = {ROOT / page.file for page in PAGES.values()}
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "proof" not in path.parts and path not in proofs]
    top = (ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "UPGRADING", "CHANGELOG"))
    return [*(path for path in top if path.exists()), *pages]


def verdicts() -> list[Verdict]:
    """All pages, and all quoted figures."""
    pages = {page.file: of_page(page) for page in PAGES.values()}
    others = [Verdict(str(path.relative_to(ROOT)), STALE, f"stale: {UNKNOWN}") for path in unknown()]
    return [*pages.values(), *others, *(found for path in quoting() for found in of_figures(path, pages))]


def unknown() -> list[Path]:
    """Files among the pages of evidence that nothing makes any more."""
    known = {page.file for page in PAGES.values()} | {"docs/proof/index.md"}
    found = (path for path in sorted((ROOT / "docs/proof").rglob("*")) if path.is_file())
    return [path for path in found if str(path.relative_to(ROOT)) not in known]


def remove() -> None:
    """Delete what is stale: pages, what was written with them, and figures; the comments around figures stay."""
    pages = {page.file: of_page(page) for page in PAGES.values()}
    gone = unknown()
    for page in PAGES.values():
        if pages[page.file].state == STALE:
            gone += [ROOT / page.file, *(found for each in page.writes for found in sorted(ROOT.glob(each)))]
    for path in gone:
        path.unlink(missing_ok=True)
        print(f"{path.relative_to(ROOT)}: removed")
    pages = {page.file: of_page(page) for page in PAGES.values()}
    for path in quoting():
        text = path.read_text()
        kept = FIGURE.sub(lambda match: _without_stale(match, pages), text)
        if kept != text:
            path.write_text(kept)
            print(f"{path.relative_to(ROOT)}: figures removed")


def _without_stale(match: re.Match[str], pages: dict[str, Verdict]) -> str:
    page, commit, words = match.groups()
    if _figure("", page, commit, words.strip(), pages).state != STALE:
        return match[0]
    return f"<!-- figure: {page} -->\n<!-- figure: end -->"


def main(arguments: list[str]) -> int:
    """Print a line for each page and figure; 1 if one is stale, or with --release missing."""
    if "--remove" in arguments:
        remove()
    found = verdicts()
    for verdict in found:
        print(verdict)
    wrong = [verdict for verdict in found if verdict.state == STALE]
    missing = [verdict for verdict in found if verdict.state == MISSING]
    print(f"{len(wrong)} stale pages and figures" if wrong else "no stale page or figure", end="")
    print(f"; not made yet: {len(missing)}" if missing else "")
    if wrong:
        print("A commit that makes a page stale removes it, with the figures that quote it:")
        print("python -m tests.proofs.freshness --remove && python -m tests.proofs.index")
    return int(bool(wrong or ("--release" in arguments and missing)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
