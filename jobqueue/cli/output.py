"""What commands print: a Result as lines or as JSON, masked, once or with --watch again and again; and questions."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from io import StringIO
from typing import Any
from unicodedata import combining, east_asian_width

from django.core.management.base import OutputWrapper
from django.db import Error, connections

from jobqueue.base.durations import format_seconds
from jobqueue.cli.arguments import add_database, add_json, duration, unreadable
from jobqueue.db.alias import explain_missing_table
from jobqueue.exceptions import DatabaseBusy, InvalidValue, StatementTimeout
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text, mask_texts

#: exit status once nobody reads the output any more: what a shell reports of a program that SIGPIPE ended
READER_GONE = 128 + signal.SIGPIPE

_GAP = "  "
#: moves the cursor of a terminal to the first line, and clears what is below it
_CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a command.

    `document` is for --json; it gets the key "version", and may contain instants. `lines` are for people, and are not
    read if they are not printed. A script, for a shell or a database server, is printed as it is, at any verbosity: to
    mask a word in it would break it, and it has no values of rows.
    """

    document: Mapping[str, Any] | None = None
    lines: Iterable[str] = ()
    status: int = 0
    is_script: bool = False


#: a sub-command yields several to print one before it goes on: before a question or an error
Results = Result | Iterator[Result]


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A sub-command of `jobs`: its help, a function that adds its own arguments, and one that runs it on a database."""

    meaning: str
    arguments: Callable[[ArgumentParser], None] | None
    run: Callable[[str, dict[str, Any]], Results]
    prepare: Callable[[dict[str, Any]], None] | None = None  # called once, before it runs once or with --watch often
    watched: str = ""  # what --watch shows, with {} for the database; empty: it has no --watch
    has_database: bool = True

    def declare(self, parser: ArgumentParser) -> None:
        """Add the arguments of this sub-command, and those that all have."""
        if self.arguments is not None:
            self.arguments(parser)
        if self.watched:
            again = "print it again after each TIME, such as 2s"
            parser.add_argument("--watch", type=duration, default=None, metavar="TIME", help=again)
            add_json(parser, "print one JSON object; with --watch one in each line")
        else:
            add_json(parser)
        if self.has_database:
            add_database(parser)
        else:
            parser.set_defaults(database=None)

    def perform(self, out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
        """Run and print, with --watch until it is interrupted. Returns the exit status."""
        if self.prepare is not None:
            self.prepare(given)
        if given.get("watch") is None:
            return show(self.run(using, given), out, given)
        return repeat(partial(self.run, using, given), out, using, given, words=self.watched.format(using))


def show(results: Results, out: OutputWrapper, given: Mapping[str, Any]) -> int:
    """Print each result as soon as it is there, as --json and --verbosity say. Returns the status of the last one.

    Exits with READER_GONE if nobody reads `out` any more.
    """
    status = 0
    for result in (results,) if isinstance(results, Result) else results:
        for text in _texts(result, given):
            with _quiet_exit(out):
                out.write(text)
        with _quiet_exit(out):
            out.flush()
        status = result.status
    return status


@contextmanager
def _quiet_exit(out: OutputWrapper) -> Iterator[None]:
    """Exit without a traceback if the reader of `out` has gone, as in `manage.py jobs list | head -1`."""
    try:
        yield
    except BrokenPipeError:
        # Otherwise Python would write what is left at its exit, and complain.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        sys.exit(READER_GONE)


def _texts(result: Result, given: Mapping[str, Any]) -> Iterable[str]:
    if given.get("json"):
        if result.document is not None:
            document = {"version": 1, **result.document}
            yield json.dumps(document if result.is_script else mask_texts(document), default=_encoded)
    elif result.is_script:
        yield from result.lines
    elif given["verbosity"] > 0:
        for line in result.lines:
            yield mask_text(one_line(line))


def _encoded(value: object) -> object:
    if isinstance(value, datetime):
        return instant(value)
    raise TypeError(f"no JSON for {value!r}")


def instant(value: object) -> object:
    """An instant as text; other values as they are."""
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def complain(text: str) -> None:
    """Write a line to stderr, masked."""
    sys.stderr.write(f"{mask_text(one_line(text))}\n")
    sys.stderr.flush()


def confirm(question: str, *, yes: bool) -> bool:
    """Return True with --yes, or if the answer on a terminal is yes. Raises InvalidValue where nobody can answer."""
    if yes:
        return True
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise InvalidValue(f"{question} Nothing was changed: nobody can answer here, so pass --yes.")
    # Not input(): it writes to the standard output, which may be JSON for a program, and raises at the end of input.
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def aligned(rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> Iterator[str]:
    """A line for each row: columns line up on a terminal; those in `numbers`, counted from 0, are set to the right."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            f"{' ' * (wide - _width(cell))}{cell}" if place in numbers else f"{cell}{' ' * (wide - _width(cell))}"
            for place, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ]
        yield _GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """How many columns of a terminal `text` takes: two for each Korean character."""
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def listed(lines: Iterable[str], found: Sized, given: Mapping[str, Any], none: str = "") -> Iterator[str]:
    """The lines of what was found; then that there may be more, if --limit was reached, or `none` if nothing was."""
    yield from lines
    if len(found) >= given["limit"]:
        yield "there may be more; pass a larger --limit"
    if not found and none:
        yield none


def repeat(look: Callable[[], Results], out: OutputWrapper, using: str, given: Mapping[str, Any], *, words: str) -> int:
    """Print what look() returns again after each period of --watch. Returns 0 when it is interrupted.

    It goes on after an error of the database, with a line about it on stderr. On a terminal each block replaces the one
    before, below a line with `words`. In a file or a pipe an empty line separates them, and with --json each is a line.
    Exits with READER_GONE if nobody reads `out` any more.
    """
    seconds: float = given["watch"]
    plain = given["json"] or given["verbosity"] < 1
    head = "" if plain or not out.isatty() else f"{_CLEAR}{words}, every {format_seconds(seconds)}; Ctrl-C ends it\n\n"
    block, gap = "", ""
    with suppress(KeyboardInterrupt):
        while True:
            error = ""
            try:
                block = _read(look, using, given)
            except (Error, DatabaseBusy, StatementTimeout) as found:
                error = f"{unreadable(using, found)} Trying again in {format_seconds(seconds)}."
                connections[using].close()
            if not error or head:
                with _quiet_exit(out):
                    out.write(f"{head or gap}{block}", ending="")
                    out.flush()
                gap = "" if plain else "\n"
            if error:
                complain(error)
            time.sleep(seconds)
    return 0


def _read(look: Callable[[], Results], using: str, given: Mapping[str, Any]) -> str:
    """The whole output: a terminal must not be cleared before there is something to show."""
    written = StringIO()
    with explain_missing_table(using):
        show(look(), OutputWrapper(written), given)
    return written.getvalue()
