"""Memory and processor time of a process and all below it, from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


def tree(pid: int) -> list[int]:
    """`pid` and every running process below it."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the tree, including children that have ended."""
    total = 0
    for one in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(fields[i]) for i in (11, 12, 13, 14))
    return total / _TICK


def memory_mb(pid: int) -> dict[str, float]:
    """PSS and RSS of the tree in MB, and the largest RSS of one process."""
    pss, rss = 0, [0]
    for one in tree(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            pss += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            rss.append(int(Path(f"/proc/{one}/statm").read_text().split()[1]) * _PAGE_KB)
    return {name: round(kb / 1024, 1) for name, kb in (("pss", pss), ("rss", sum(rss)), ("largest_rss", max(rss)))}
