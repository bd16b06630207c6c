"""python -m tests.architecture.house [COMMIT ...]: the rooms of the package in figures, now or at these commits.

A room is a package of `jobqueue`, or a module beside `jobqueue/__init__.py`. Floors: the length of the longest chain of
imports between rooms. Imports that only serve type checkers count, too. Hops: see tests/architecture/hops.py.

After the figures: the lines of the package that were added and deleted since the first commit that is named, by the
cause that titles of commits begin with ("Merge", "Fix", ...). Lines of files that only moved are in neither.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.patience import patient

ROOT = Path(__file__).resolve().parents[2]


def modules(package: Path) -> dict[str, Path]:
    """Dotted name below jobqueue -> file; migrations are left out."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if "migrations" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of each import of `jobqueue`, as written; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "jobqueue":
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, node.lineno) for a in node.names if a.name.split(".")[0] == "jobqueue")


def graph(package: Path) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports."""
    known = modules(package)
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in known.items():
        for name, _ in imports(ast.parse(path.read_text())):
            target = name.removeprefix("jobqueue").removeprefix(".")
            while target not in known:
                target = target.rpartition(".")[0]
            if target != module:
                found[module].add(target)
    return found


def room(module: str, known: Mapping[str, Path]) -> str:
    """The package of a module; a module beside jobqueue/__init__.py is a room of its own."""
    if known[module].name == "__init__.py" or "." not in module:
        return module or "__init__"
    return module.rpartition(".")[0]


def rooms(package: Path) -> dict[str, set[str]]:
    """Room -> the rooms it imports. A package and the packages inside it are told apart."""
    known = modules(package)
    found: dict[str, set[str]] = {room(module, known): set() for module in known}
    for module, targets in graph(package).items():
        own = room(module, known)
        found[own] |= {room(target, known) for target in targets} - {own}
    return found


def circles(arrows: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The groups of nodes that reach each other."""
    reach = {node: _reached(node, arrows) for node in arrows}
    found: list[set[str]] = []
    for node in arrows:
        group = {other for other in reach[node] if node in reach.get(other, ())}
        if group and group not in found:
            found.append(group)
    return found


def _reached(start: str, arrows: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += arrows.get(node, ())
    return found


def floors(arrows: Mapping[str, Iterable[str]]) -> int:
    """The longest chain; the members of a circle stand on one floor."""
    together = {node: frozenset(group) for group in circles(arrows) for node in group}
    group = {node: together.get(node, frozenset({node})) for node in arrows}
    height: dict[frozenset[str], int] = {}

    def climb(nodes: frozenset[str]) -> int:
        if nodes not in height:
            below = {group[target] for node in nodes for target in arrows[node]} - {nodes}
            height[nodes] = 1 + max(map(climb, below), default=0)
        return height[nodes]

    return max(map(climb, group.values()))


def figures(package: Path) -> dict[str, int]:
    """What the page of the proof shows."""
    known, arrows = modules(package), graph(package)
    importers: dict[str, int] = defaultdict(int)
    for targets in arrows.values():
        for target in targets:
            importers[target] += 1
    trees = {module: ast.parse(path.read_text()) for module, path in known.items()}
    between = rooms(package)
    return {
        "modules": len(known),
        "modules at the top": sum("." not in m and p.name != "__init__.py" for m, p in known.items()) + 1,
        "rooms": len(between),
        "imports between rooms": sum(map(len, between.values())),
        "floors of rooms": floors(between),
        "circles of modules": len(circles({m: arrows.get(m, set()) for m in known})),
        "modules with one importer": sum(count == 1 for count in importers.values()),
        "lines": sum(len(path.read_text().splitlines()) for path in known.values()),
        "Any": sum(isinstance(n, ast.Name) and n.id == "Any" for tree in trees.values() for n in ast.walk(tree)),
    }


def hops(root: Path) -> dict[str, list[str]]:
    """Route -> the functions of the package below `root` between the call and its SQL."""
    command = [sys.executable, str(Path(__file__).with_name("hops.py")), str(root)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=patient(), check=False)
    if done.returncode:
        raise RuntimeError(f"the routes of {root} could not be traced:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def column(root: Path) -> dict[str, int]:
    """The figures and the hops of the files below `root`."""
    return figures(root / "jobqueue") | {f"hops of {name}": len(route) for name, route in hops(root).items()}


def by_cause(log: str) -> dict[str, tuple[int, int]]:
    """First word of the title -> (lines added, lines deleted), from `git log --numstat --format=%x00%s`."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for commit in log.split("\0")[1:]:
        title, *files = commit.split("\n")
        for line in files:
            plus, minus, path = line.split("\t") if line else ("0", "0", "")
            if path.endswith(".py") and "migrations/" not in path:
                added, deleted = found[title.split()[0]]
                found[title.split()[0]] = added + int(plus), deleted + int(minus)
    return {cause: sums for cause, sums in found.items() if any(sums)}


def main(commits: list[str]) -> None:
    """Print one column for each commit, and one for the files as they are."""
    from tests.proofs.history.trees import git, unpack

    columns = {}
    for commit in commits:
        with tempfile.TemporaryDirectory() as name:
            unpack(commit, Path(name), "jobqueue")
            columns[commit] = column(Path(name))
    columns["now"] = column(ROOT)
    print("| | " + " | ".join(columns) + " |\n| --- |" + " ---: |" * len(columns))
    for name in columns["now"]:
        print(f"| {name} | " + " | ".join(str(column[name]) for column in columns.values()) + " |")
    if commits:
        range_ = ["--first-parent", "--diff-merges=off", f"{commits[0]}..HEAD", "--", "jobqueue"]
        causes = by_cause(git("log", "-M", "--numstat", "--format=%x00%s", *range_))
        print("\n| cause | lines added | lines deleted | sum |\n| --- | ---: | ---: | ---: |")
        for cause, (added, deleted) in sorted(causes.items(), key=lambda item: item[1][0] - item[1][1]):
            print(f"| {cause} | {added} | {deleted} | {added - deleted:+} |")


if __name__ == "__main__":
    main(sys.argv[1:])
