"""jobs note: write, remove, print or list notes on failures of one kind."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import FOUND, add_database, add_json, count, tell_of_more
from jobqueue.cli.dead_letters import instant, shortened
from jobqueue.dead_letters import Note, note, notes
from jobqueue.dead_letters.filtering import check_fingerprint
from jobqueue.dead_letters.noting import notes_on
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import one_line


def declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "fingerprint",
        nargs="?",
        default=None,
        metavar="FINGERPRINT",
        help="failures of this kind; else list all notes",
    )
    parser.add_argument("--text", default=None, metavar="TEXT", help='write this note; "" removes it')
    parser.add_argument("--by", default="", metavar="NAME", help="who writes it")
    parser.add_argument("--limit", type=count(1000), default=100, metavar="N", help="number of notes (default 100)")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    kind, text = given["fingerprint"], given["text"]
    if text is None and given["by"]:
        raise InvalidValue("--by goes with --text. Nothing was written.")
    if kind is None:
        if text is not None:
            raise InvalidValue("jobs note --text needs the fingerprint of a failure: see jobs list --groups.")
        return _list(out, notes(limit=given["limit"], using=using), given)
    if text is None:
        found = notes_on([check_fingerprint(kind)], using=using)
        return _print(out, found.get(kind), given)
    return _write(out, using, given, note(kind, text, by=given["by"], using=using))


def _write(out: OutputWrapper, using: str, given: dict[str, Any], changed: bool) -> int:
    kind = given["fingerprint"]
    found = notes_on([kind], using=using).get(kind)
    if given["json"]:
        out.write(json.dumps({"version": 1, "changed": changed, "note": _facts(found)}))
    elif given["verbosity"] > 0 and found is not None:
        out.write(f"{kind} has this note now; all jobs that fail like that show it")
    elif given["verbosity"] > 0:
        out.write(f"the note on {kind} is removed" if changed else f"there is no note on {kind}; nothing was changed")
    return 0 if changed else FOUND


def _print(out: OutputWrapper, found: Note | None, given: dict[str, Any]) -> int:
    if given["json"]:
        out.write(json.dumps({"version": 1, "note": _facts(found)}))
    elif given["verbosity"] > 0 and found is None:
        out.write(f"there is no note on {given['fingerprint']}")
    elif given["verbosity"] > 0 and found is not None:
        out.write(_head(found))
        out.write("\n".join(one_line(line) for line in found.text.splitlines()))
    return 0 if found is not None else FOUND


def _list(out: OutputWrapper, found: list[Note], given: dict[str, Any]) -> int:
    if given["json"]:
        out.write(json.dumps({"version": 1, "notes": [_facts(one) for one in found]}))
    elif given["verbosity"] > 0:
        for one in found:
            out.write(f"{_head(one)}  {shortened(one.text)}")
        tell_of_more(out, found, given)
        if not found:
            out.write("no note was written")
    return 0


def _head(found: Note) -> str:
    parts = [found.fingerprint, str(instant(found.updated_at)), found.by]
    return one_line("  ".join(filter(None, parts)))


def _facts(found: Note | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: instant(value) for name, value in asdict(found).items()}
