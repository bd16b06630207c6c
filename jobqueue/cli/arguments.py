"""Argument types, options that several commands have, and defaults from JOBQUEUE_WORKER_<OPTION>."""

from __future__ import annotations

import os
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Collection, Mapping
from copy import copy
from itertools import chain
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, connections

from jobqueue.base.durations import parse_seconds
from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.exceptions import DatabaseBusy, InvalidValue, NotMigrated, StatementTimeout, WrongDatabase, WrongSettings
from jobqueue.masking import mask_text

#: exit statuses: no such id, wrong usage, no usable database, wrong settings, and what was looked for exists
NO_SUCH_ID, USAGE, NO_DATABASE, MISCONFIGURED, FOUND = 1, 2, 3, 4, 5
ENV_PREFIX = "JOBQUEUE_WORKER_"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def duration(text: str) -> float:
    """The seconds of a duration above 0."""
    return duration_or_zero(text, zero=False)


def duration_or_zero(text: str, *, zero: bool = True) -> float:
    """The seconds of a duration of at least 0."""
    try:
        return parse_seconds(text, zero=zero)
    except InvalidValue as error:
        raise ArgumentTypeError(str(error)) from None


def duration_range(text: str) -> tuple[float, float]:
    """The seconds of both ends of a range such as 50ms..200ms; one duration stands for both."""
    low, dots, high = text.partition("..")
    first = duration(low)
    last = duration(high) if dots else first
    if first > last:
        raise ArgumentTypeError(f"{text!r}: the first duration must not be longer than the second")
    return first, last


def count(most: int) -> Callable[[str], int]:
    """An argument type for whole numbers from 1 to `most`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 to {most}")
        return int(text)

    return parse


def read_words(given: Mapping[str, Any], forms: Mapping[str, Collection[str]]) -> list[str]:
    """The words of a sub-command: a verb, and the names that it takes; ["list"] if there are none.

    `forms` has the options of each form, such as "pause NAME". Raises InvalidValue for other words, for an option of
    another verb, and without --reason for a verb that takes it.
    """
    words: list[str] = given["words"] or ["list"]
    verb, place = words[0], f"jobs {given['subcommand']}"
    lengths = [len(form.split()) for form in forms if form.split()[0] == verb]
    if len(words) not in lengths:
        raise InvalidValue(f"{place} takes no words, or: {', '.join(forms)}. Nothing was changed.")
    verbs = {form.split()[0]: options for form, options in forms.items()}
    for option in dict.fromkeys(chain.from_iterable(verbs.values())):
        if given[option] not in (None, False) and option not in verbs[verb]:
            takers = ", ".join(name for name, taken in verbs.items() if option in taken)
            shown = option.replace("_", "-")
            raise InvalidValue(f"--{shown} goes with {takers}, not with {verb}. Nothing was changed.")
    if "reason" in verbs[verb] and given["reason"] is None:
        raise InvalidValue(f"{place} {verb} needs --reason, for whoever finds it. Nothing was changed.")
    return words


def size(text: str) -> int:
    """The bytes of a size such as 512M or 2G, or a number of bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**40):
        raise ArgumentTypeError(f"{text[:40]!r} is not a size; write 512M or 2G")
    return int(number) * unit


def add_database(parser: ArgumentParser) -> None:
    parser.add_argument("--database", default=None, metavar="ALIAS", help="default: JOBQUEUE['DATABASE']")


def add_json(parser: ArgumentParser, meaning: str = "print one JSON object") -> None:
    parser.add_argument("--json", action="store_true", help=meaning)


def add_log_format(add: Callable[..., Action], default: str) -> None:
    """Declare --log-format by `add`, the add_argument of a parser or of a group."""
    meaning = f"auto: text on a terminal, else json (default {default})"
    add("--log-format", choices=["text", "json", "auto"], default=default, help=meaning)


def add_django_options(own: ArgumentParser, command: ArgumentParser) -> None:
    """Let the parser of a sub-command take the options of Django that its `command` has: -v, --settings and others."""
    group = own.add_argument_group("Django's options")
    for action in command._actions:
        if action.option_strings and action.dest != "help":
            option = copy(action)
            # Without a default: it would replace what was given before the name of the sub-command.
            option.default = SUPPRESS
            group._add_action(option)


def unreadable(using: str, error: Error | DatabaseBusy | StatementTimeout, what: str = "the queue") -> str:
    """The message for a database that cannot be read, masked: its errors quote values and addresses."""
    if isinstance(error, NotMigrated | WrongDatabase):
        return mask_text(str(error).removesuffix(".") + ".")
    why = mask_text(str(error))
    return f"{what} on {using!r} cannot be read: {why}. To find out why, run: manage.py check --database {using}."


def database_of(given: Mapping[str, Any]) -> str:
    """The alias of --database, or of JOBQUEUE. Raises CommandError: status 2 for the option, 4 for the settings."""
    try:
        if given["database"] is None:
            return alias_of(None)
        load()
    except WrongSettings as error:
        raise CommandError(str(error), returncode=MISCONFIGURED) from None
    if given["database"] not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        raise CommandError(f"--database {given['database']!r} is not in DATABASES ({known})", returncode=USAGE)
    return str(given["database"])


def env_defaults(parser: ArgumentParser) -> None:
    """Take defaults from the environment, which a flag overrides. A wrong value is a usage error."""
    for action in parser._actions:
        flag = next((o for o in action.option_strings if o.startswith("--")), None)
        name = ENV_PREFIX + flag[2:].upper().replace("-", "_") if flag else None
        if name and name in os.environ and action.dest not in ("help", "version", "settings", "pythonpath"):
            # Not action.default: --reload and --no-reload share one destination.
            parser.set_defaults(**{action.dest: _from_env(parser, action, name, os.environ[name])})


def _from_env(parser: ArgumentParser, action: Action, name: str, text: str) -> object:
    if action.nargs == 0:
        if text.lower() not in _TRUE | _FALSE:
            parser.error(f"{name}={text!r}: write 1 or 0")
        if text.lower() in _TRUE:
            return action.const
        return not action.const if action.default is None else action.default
    try:
        value = action.type(text) if callable(action.type) else text
    except (ArgumentTypeError, ValueError, TypeError) as error:
        parser.error(f"{name}: {error}")
    if action.choices and value not in action.choices:
        parser.error(f"{name}={text!r}: choose from {', '.join(map(str, action.choices))}")
    return value
