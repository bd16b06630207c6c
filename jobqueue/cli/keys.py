"""jobs keys: list the ordering keys with the most jobs, or those that a failed job blocks, and resume a key."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import FOUND, add_database, add_json, count, tell_of_more
from jobqueue.cli.audited import audit
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text
from jobqueue.ordering.lanes import KeyState, hot_keys, stuck_keys
from jobqueue.transitions import resume
from jobqueue.validation import readable_key


def declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="resume QUEUE KEY",
        help="run the jobs of KEY without waiting for its failed job; hex:6b65 for a KEY that is not text",
    )
    parser.add_argument("--queue", default=None, metavar="NAME", help="only keys of this queue")
    parser.add_argument("--stuck", action="store_true", help="only keys that a failed job blocks")
    parser.add_argument("--limit", type=count(10_000), default=20, metavar="N", help="number of keys (default 20)")
    parser.add_argument("--fail-if-any", action="store_true", help=f"with --stuck: exit {FOUND} if there are any")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    if given["words"]:
        return _resume(out, using, given)
    look = stuck_keys if given["stuck"] else hot_keys
    found = look(queue=given["queue"], limit=given["limit"], using=using)
    if given["json"]:
        out.write(json.dumps({"version": 1, "keys": [_facts(key) for key in found]}))
    elif given["verbosity"] > 0:
        for key in found:
            name = f"{key.queue}  {readable_key(key.ordering_key)}"
            out.write(one_line(f"{key.jobs}  {name}  {key.state}  first #{key.first_id}"))
        out.write(f"{len(found)} ordering keys {'are blocked' if given['stuck'] else 'have jobs'}")
        tell_of_more(out, found, given)
    return FOUND if found and given["stuck"] and given["fail_if_any"] else 0


def _resume(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    words = given["words"]
    if len(words) != 3 or words[0] != "resume":
        raise InvalidValue("jobs keys takes either no words, or: resume QUEUE KEY. Nothing was changed.")
    queue, key = words[1], _key(words[2])
    done = resume(queue, key, using=using)
    audit("resume", {"queue": queue, "key": readable_key(key)}, changed=int(done), using=using)
    if given["json"]:
        out.write(json.dumps({"version": 1, "resumed": done}))
    elif given["verbosity"] > 0:
        what = "is resumed" if done else "is not blocked by a failed job; nothing was changed"
        out.write(one_line(f"ordering key {readable_key(key)} of queue {queue} {what}"))
    return 0 if done else FOUND


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()
    except (UnicodeEncodeError, ValueError):
        raise InvalidValue(f"{text!r} is not an ordering key. Nothing was changed.") from None


def _facts(key: KeyState) -> dict[str, Any]:
    name = readable_key(key.ordering_key)
    # The hex digits would show a secret that is masked in the name.
    facts = {"ordering_key": name, "key_hex": key.ordering_key.hex() if mask_text(name) == name else None}
    return asdict(key) | facts | {"due_at": key.due_at.isoformat(timespec="milliseconds")}
