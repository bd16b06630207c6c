"""What the sub-commands about dead letters share: options that choose jobs, and redrives as text and JSON."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import asdict
from datetime import datetime
from typing import Any

from jobqueue.dead_letters import Redriven
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of, one_line

_NOTE_CHARS = 200
_FILTERS = ("fingerprint", "queue", "task", "cause")


def add_filter(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--fingerprint", default=None, metavar="F", help="failures of this kind: see jobs list --groups"
    )
    parser.add_argument("--queue", default=None, metavar="NAME", help="jobs of this queue")
    parser.add_argument("--task", default=None, metavar="PATH", help="jobs of this task")
    parser.add_argument("--cause", default=None, metavar="CAUSE", help="failures of this cause, such as dependency")


def filter_of(given: dict[str, Any]) -> dict[str, str]:
    """The options of add_filter() that were given."""
    return {name: given[name] for name in _FILTERS if given[name] is not None}


def confirm(question: str, *, yes: bool) -> bool:
    """Whether to do it: --yes, or the answer on a terminal. Raises InvalidValue where nobody can answer."""
    if yes:
        return True
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise InvalidValue(f"{question} Nothing was changed: nobody can answer here, so pass --yes.")
    # Not input(): it writes to the standard output, which may be JSON for a program, and raises at the end of input.
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def described(run: Redriven) -> str:
    """A redrive in one line."""
    wanted = ", ".join(f"{name} {_short(value)}" for name, value in (run.filters or {}).items()) or "everything"
    parts = [f"redrive {run.id}", run.state, f"{run.redriven} of {count_of(run.wanted, 'job')}", wanted]
    parts += ["alone"] if run.alone else []
    parts += [f"{run.skipped} skipped"] if run.skipped else []
    parts += [f"canary {run.canary}"] if run.canary else []
    parts += [f"{run.per_second:g}/s"] if run.per_second else []
    return "  ".join([*parts, *([run.reason] if run.reason else [])])


def facts(run: Redriven) -> dict[str, Any]:
    """A redrive for JSON."""
    return {name: instant(value) for name, value in asdict(run).items()}


def instant(value: object) -> object:
    """An instant as text; other values as they are."""
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


def shortened(note: str) -> str:
    """The beginning of a note in one line."""
    text = one_line(" ".join(note.split()))
    return text if len(text) <= _NOTE_CHARS else f"{text[:_NOTE_CHARS]}..."


def _short(value: object) -> str:
    return f"({len(value)})" if isinstance(value, list) else str(value)
