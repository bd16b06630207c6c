"""Argument types, and defaults from JOBQUEUE_WORKER_<OPTION>."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from jobqueue.durations import parse_seconds
from jobqueue.exceptions import InvalidValue

ENV_PREFIX = "JOBQUEUE_WORKER_"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def duration(text: str) -> float:
    """A duration above 0, in seconds."""
    try:
        return parse_seconds(text)
    except InvalidValue as error:
        raise ArgumentTypeError(str(error)) from None


def duration_or_zero(text: str) -> float:
    """A duration of at least 0, in seconds."""
    try:
        return parse_seconds(text, zero=True)
    except InvalidValue as error:
        raise ArgumentTypeError(str(error)) from None


def duration_range(text: str) -> tuple[float, float]:
    """50ms..200ms, or one duration for both ends."""
    low, dots, high = text.partition("..")
    first = duration(low)
    last = duration(high) if dots else first
    if first > last:
        raise ArgumentTypeError(f"{text!r}: the first duration must not be longer than the second")
    return first, last


def count(most: int) -> Callable[[str], int]:
    """A whole number from 1 to `most`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 to {most}")
        return int(text)

    return parse


def size(text: str) -> int:
    """Bytes: 512M, 2G, or a bare number of bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**40):
        raise ArgumentTypeError(f"{text[:40]!r} is not a size; write 512M or 2G")
    return int(number) * unit


def env_defaults(parser: ArgumentParser) -> None:
    """Take defaults from the environment: flag > environment > settings. A bad value is a usage error."""
    for action in parser._actions:
        flag = next((o for o in action.option_strings if o.startswith("--")), None)
        name = ENV_PREFIX + flag[2:].upper().replace("-", "_") if flag else None
        if name and name in os.environ and action.dest not in ("help", "version", "settings", "pythonpath"):
            # Not action.default: --reload and --no-reload share one destination.
            parser.set_defaults(**{action.dest: _from_env(parser, action, name, os.environ[name])})


def _from_env(parser: ArgumentParser, action: Any, name: str, text: str) -> Any:
    if action.nargs == 0:
        if text.lower() not in _TRUE | _FALSE:
            parser.error(f"{name}={text!r}: write 1 or 0")
        if text.lower() in _TRUE:
            return action.const
        return not action.const if action.default is None else action.default
    try:
        value = action.type(text) if action.type else text
    except (ArgumentTypeError, ValueError, TypeError) as error:
        parser.error(f"{name}: {error}")
    if action.choices and value not in action.choices:
        parser.error(f"{name}={text!r}: choose from {', '.join(map(str, action.choices))}")
    return value
