"""Freeze a whole worker right behind a statement inside a transaction, as a host that is paused does."""

import os
import signal
import threading
from pathlib import Path

from django.db.backends.utils import CursorWrapper

from tests.selection.shapes import shape


def install(folder):
    """Note each kind of statement in folder/seen, a line each; freeze at the first one that begins as folder/wanted.

    A kind is the thread and the statement's shape. The freeze makes the file folder/frozen.
    """
    folder = Path(folder)
    wanted = (folder / "wanted").read_text() if (folder / "wanted").exists() else None
    seen = set()

    def wrap(name):
        execute = getattr(CursorWrapper, name)

        def run(cursor, sql, *rest):
            found = execute(cursor, sql, *rest)
            if cursor.db.in_atomic_block and (text := shape(str(sql))) and not text.startswith("SET "):
                kind = f"{threading.current_thread().name.rstrip('0123456789')}: {text}"
                if kind not in seen:
                    seen.add(kind)
                    _append(folder / "seen", kind)
                if wanted is not None and kind.startswith(wanted) and _is_first(folder / "frozen"):
                    os.killpg(0, signal.SIGSTOP)
            return found

        setattr(CursorWrapper, name, run)

    wrap("_execute")
    wrap("_executemany")


def _append(path, line):
    with path.open("a") as sink:
        sink.write(f"{line}\n")


def _is_first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
