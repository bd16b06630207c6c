"""--pidfile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.core.management.base import CommandError

from jobqueue.worker.shared.processes import pid_exists


@contextmanager
def held(name: str | None) -> Iterator[None]:
    """Write this process's id to file `name` and remove it at the end. Raises CommandError if that process lives."""
    if name is None:
        yield
        return
    path = Path(name)
    with suppress(OSError, ValueError):
        other = int(path.read_text())
        if other != os.getpid() and pid_exists(other):
            raise CommandError(
                f"{path}: worker {other} is running; stop it first, or use another --pidfile", returncode=2
            )
    try:
        path.write_text(f"{os.getpid()}\n")
    except OSError as error:
        raise CommandError(f"--pidfile {path}: {error.strerror}", returncode=2) from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
