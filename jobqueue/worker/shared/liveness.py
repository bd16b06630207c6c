"""Whether a process is there."""

from __future__ import annotations

import os


def lives(pid: int) -> bool:
    """Whether process `pid` runs or may run again on this machine, whoever owns it; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # After the last parenthesis: the program's name before it may hold anything.
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True
