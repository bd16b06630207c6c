"""Notice changed code, for development."""

from __future__ import annotations

import time
from pathlib import Path

from django.utils.autoreload import iter_all_python_module_files

LOOK_SECONDS = 1.0


class Watcher:
    """Remembers when each loaded module's file was last changed."""

    def __init__(self) -> None:
        self._known = _mtimes()
        self._next = 0.0

    def changed(self) -> bool:
        """Whether a file that was loaded has changed since; looks once a second at most."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_SECONDS
        found = _mtimes()
        # Modules that were loaded meanwhile are new, not changed.
        return any(found.get(path, 0.0) != mtime for path, mtime in self._known.items())


def _mtimes() -> dict[Path, float]:
    found = {}
    for path in iter_all_python_module_files():
        try:
            found[path] = path.stat().st_mtime
        except OSError:
            continue
    return found
