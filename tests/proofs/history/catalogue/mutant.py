"""One place that is broken on purpose: a function by its name, and in it a text by its words.

Code around the function may change, and a formatter may break lines in it, without an effect on a mutant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
#: brackets, blanks, and what is between them
_PIECES = re.compile(r"[(\[{]\s*|\s*[)\]}]|\s+|[^\s()\[\]{}]+")


class NotThere(LookupError):
    """The place of a mutant is not in the code, or there more than once."""


@dataclass(frozen=True)
class Mutant:
    """In `function` of `file`, `old` becomes `new`; one of `tests`, on `database`, has to fail.

    `function` is the name of a function or class, of a method as Class.method, or that of a constant or attribute.
    """

    what: str
    file: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...]
    database: str = "sqlite"

    @property
    def place(self) -> str:
        """The place for people."""
        return f"{self.file.removeprefix('jobqueue/')}: {self.function}"

    def broken(self, code: str) -> str:
        """The text of the file after the change. Raises NotThere."""
        wanted = _words(self.old)
        found = [
            (begin + match.start(), begin + match.end())
            for begin, end in _spans(code, self.function)
            for match in wanted.finditer(code[begin:end])
        ]
        if len(found) != 1:
            raise NotThere(f"{self.place}: {self.old!r} is there {len(found)} times")
        ((begin, end),) = found
        return code[:begin] + self.new + code[end:]


def mutant(what: str, file: str, function: str, old: str, new: str, *tests: str, database: str = "sqlite") -> Mutant:
    """A mutant of jobqueue/`file`."""
    return Mutant(what, f"jobqueue/{file}", function, old.strip(), new, tests, database)


def _words(text: str) -> re.Pattern[str]:
    """Matches `text`, with other blanks between its words, and with each bracket on a line of its own."""
    found = []
    for piece in _PIECES.findall(text):
        sign = piece.strip()
        if sign and sign in "([{":
            found.append(rf"\{sign}\s*")
        elif sign and sign in ")]}":
            found.append(rf",?\s*\{sign}")
        else:
            found.append(re.escape(piece) if sign else r"\s+")
    return re.compile("".join(found))


def _spans(code: str, name: str) -> Iterator[tuple[int, int]]:
    """Where the lines of everything with this name begin and end. Raises NotThere if there is nothing."""
    found = [ast.parse(code)]
    for word in name.split("."):
        found = [node for outer in found for node in _named(outer, word)]
    if not found:
        raise NotThere(f"{name} is not there")
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in found:
        decorators = getattr(node, "decorator_list", [])
        yield starts[min(each.lineno for each in (node, *decorators)) - 1], starts[node.end_lineno]


def _named(outer: ast.AST, name: str) -> Iterator[ast.AST]:
    """The statements directly in `outer`, a module, class or function, that define `name`."""
    for node in outer.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names = [node.name]
            case ast.Assign():
                names = [
                    target.id for each in node.targets for target in ast.walk(each) if isinstance(target, ast.Name)
                ]
            case ast.AnnAssign() | ast.AugAssign():
                names = [getattr(node.target, "id", "")]
            case _:
                names = []
        if name in names:
            yield node
