"""Reads the pages: fenced code blocks, headings, links, and the hidden comments that steer the tests.

Hidden comments, each on lines of its own before or after a block:

    <!-- test: setup          python that runs at this place but is not shown (also `test: check`, for assertions)
    ...
    -->
    <!-- test: module NAME -->   the next python block is the body of the importable module NAME
    <!-- test: only A B -->      the next block runs only on these databases (sqlite, mysql, mariadb, postgres)
    <!-- test: beside NAME -->   the next python block, or the rest of this comment, runs where the package NAME is
                                 installed (tests/docs/beside.py), and not with the others; a second word is a module
    <!-- test: work -->          run every due job now, as a worker would
    <!-- test: file PATH -->     tutorial: the next block is the whole content of the file PATH
    <!-- test: append PATH -->   tutorial: the next block is added at the end of the file PATH
    <!-- test: background -->    tutorial: the next shell block goes on running in a session of its own
    <!-- test: skip -->          tutorial: the next shell block is not run
    <!-- test: expect TEXT -->   tutorial: what the last shell block printed holds TEXT, now or soon, after what was
                                 expected of it before; so it is with a block of text, see tests/docs/printed.py
    <!-- test: worker -->        tutorial: the next expectations are about the last block that goes on running
    <!-- test: browse URL -->    tutorial: the next expectations are about the text of this page
    <!-- test: picture PATH URL -->
                                 tutorial: the file PATH is a picture of this page, see tests/docs/tutorial_picture.py
    <!-- test: replace PATH OLD NEW -->
                                 tutorial: in the file PATH, OLD becomes NEW
    <!-- test: unseen COMMAND -->
                                 mistakes: the command is run but not shown
    <!-- test: without NAME -->  mistakes: the package NAME is not installed
    <!-- test: first_job -->     tutorial: the time to the first job ends here
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: these are written by `make prove`
EVIDENCE = [*sorted((ROOT / "docs" / "proof").rglob("*.md")), ROOT / "docs" / "benchmarks.md"]
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in EVIDENCE)]
OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "UPGRADING.md")]
VERBS = {"setup", "check", "module", "only", "beside", "work", "file", "append", "background", "expect"}
VERBS |= {"skip", "worker", "browse", "picture", "replace", "first_job", "unseen", "without"}
LANGUAGES = {"python", "sql", "sh", "ini", "yaml", "dockerfile", "text"}

_MARK = re.compile(r"^<!-- test: (\w+)(.*?)-->", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """A code block (kind = its language) or a hidden comment (kind = "test" and a verb)."""

    page: str
    line: int
    kind: str
    verb: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name(page: Path) -> str:
    """The page's path as people write it."""
    return str(page.relative_to(ROOT))


def pieces(page: Path) -> list[Piece]:
    """The blocks and hidden comments of a page in their order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        found.append((match.start(), match[1].strip(), "", match[2]))
    blocks = [(m.start(), m.end()) for m in _FENCE.finditer(text)]
    for match in _MARK.finditer(text):
        if not any(start < match.start() < end for start, end in blocks):
            found.append((match.start(), "test", match[1], match[2].strip("\n ")))
    return [Piece(name(page), text.count("\n", 0, at) + 1, kind, verb, body) for at, kind, verb, body in sorted(found)]


def prose(page: Path) -> str:
    """The page without code blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _FENCE.sub("", page.read_text()), flags=re.DOTALL)


def links(page: Path) -> list[str]:
    """The targets of all links and pictures of a page."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual hosts make them."""
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"[`*]", "", heading.strip().lower())
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def table(page: Path, heading: str) -> list[list[str]]:
    """The rows, without the head, of the first table below a heading."""
    text = page.read_text()
    part = re.split(rf"^#+ {re.escape(heading)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    part = re.split(r"^#+ ", part, maxsplit=1, flags=re.MULTILINE)[0]
    lines = re.search(r"(?:^\|.*\n)+", part, re.MULTILINE)[0].splitlines()
    rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return rows[2:]


def code(cell: str) -> list[str]:
    """The code spans of a table cell."""
    return re.findall(r"`([^`]+)`", cell)
