"""--watch: repeat what a sub-command prints, until it is interrupted."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from typing import Any

from django.core.management.base import OutputWrapper
from django.db import Error, connections

from jobqueue.cli.arguments import duration, unreadable
from jobqueue.db.alias import explain_missing_table
from jobqueue.durations import format_seconds
from jobqueue.exceptions import DatabaseBusy, StatementTimeout
from jobqueue.log_format import one_line

#: moves the cursor of a terminal to the first line, and clears what is below it
_CLEAR = "\x1b[H\x1b[J"


def add_watch(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--watch", type=duration, default=None, metavar="TIME", help="print it again after each TIME, such as 2s"
    )


def repeat(
    show: Callable[[OutputWrapper], int], out: OutputWrapper, using: str, given: dict[str, Any], *, words: str
) -> int:
    """Call show(out), with --watch again after each period. Returns its exit status.

    With --watch it goes on after an error of the database, with a line about it on stderr, and returns 0 when it is
    interrupted, or when nobody reads `out` any more. On a terminal each block replaces the one before, below a line
    with `words`; elsewhere an empty line is between two, and with --json each is a line.
    """
    seconds: float | None = given["watch"]
    if seconds is None:
        return show(out)
    plain = given["json"] or given["verbosity"] < 1
    head = "" if plain or not out.isatty() else f"{_CLEAR}{words}, every {format_seconds(seconds)}; Ctrl-C ends it\n\n"
    block, gap = "", ""
    with suppress(KeyboardInterrupt):
        while True:
            error = ""
            try:
                block = _read(show, using)
            except (Error, DatabaseBusy, StatementTimeout) as found:
                error = one_line(f"{unreadable(using, found)} It is read again in {format_seconds(seconds)}.")
                connections[using].close()
            if not error or head:
                if not _write(out, f"{head or gap}{block}"):
                    break
                gap = "" if plain else "\n"
            if error:
                sys.stderr.write(f"{error}\n")
                sys.stderr.flush()
            time.sleep(seconds)
    return 0


def _read(show: Callable[[OutputWrapper], int], using: str) -> str:
    """What `show` writes, as a whole: a terminal must not be cleared before there is something to show."""
    written = StringIO()
    with explain_missing_table(using):
        show(OutputWrapper(written))
    return written.getvalue()


def _write(out: OutputWrapper, block: str) -> bool:
    """Whether somebody still reads `out`."""
    try:
        out.write(block, ending="")
        out.flush()
    except BrokenPipeError:
        # Otherwise Python would write what is left at its exit, and complain.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
