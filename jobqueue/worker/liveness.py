"""Whether a process is there."""

from __future__ import annotations

import os


def lives(pid: int) -> bool:
    """Whether process `pid` exists on this machine, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
