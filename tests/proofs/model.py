"""A page of evidence: its parts, their promises, and the files that they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: for a part that needs all servers at the same time
ALL = "all"
DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
PROOFS = Path("tests/proofs")
#: what each proof uses
HELPERS = ("tests/proofs/running.py", "tests/proofs/figures.py", "tests/proofs/audit.py")


@dataclass(frozen=True)
class Promise:
    """A promise in a sentence, and its figure: a column below the heading of a page that begins with these words."""

    text: str
    heading: str
    figure: str
    #: a cell of the rows that count; "" = all rows
    row: str = ""


@dataclass(frozen=True)
class Part:
    """A command that proves promises: pytest with `tests`, or python with `command`, in which {database} is filled in.

    `tests` also has what else a part depends on, besides what its page proves.
    """

    name: str
    minutes: Mapping[str, int]
    tests: tuple[str, ...]
    promises: tuple[Promise, ...]
    command: tuple[str, ...] = ()

    def arguments(self, database: str) -> list[str]:
        """The arguments of the Python process."""
        if self.command:
            return [word.replace("{database}", database) for word in self.command]
        tests = (path for path in self.tests if Path(path).name.startswith("test_"))
        limit = ["--timeout", str(60 * self.minutes[database])]
        return ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *limit]


@dataclass(frozen=True)
class Page:
    """A page of evidence. `proves`: files and folders about which each of its parts proves something."""

    name: str
    about: str
    proves: tuple[str, ...]
    parts: tuple[Part, ...]
    #: besides the page, what its run writes: patterns of paths
    writes: tuple[str, ...] = ()
    #: the module that writes it, from the files of the parts
    writer: str = ""
    path: str = ""

    @property
    def file(self) -> str:
        """Its path in the repository."""
        return self.path or f"docs/proof/{self.name}.md"

    @property
    def command(self) -> str:
        """What makes it."""
        return f"make prove ISSUE={self.name}"

    def depends(self, part: Part) -> tuple[str, ...]:
        """The files and folders that a part depends on: what it proves, its tests, and what lies beside these."""
        if part.command:
            return (*self.proves, *part.tests)
        folders = {Path(test).parent for test in part.tests if test.startswith("tests/proofs/")} - {PROOFS}
        beside = sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).glob("*.py"))
        helpers = (path for path in beside if not Path(path).name.startswith("test_"))
        return tuple(dict.fromkeys((*self.proves, *part.tests, *helpers, *HELPERS)))

    def part(self, name: str) -> Part | None:
        """The part of this name."""
        return next((part for part in self.parts if part.name == name), None)
