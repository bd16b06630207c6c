"""The sub-command keys: list ordering keys with the most jobs, or those that a failed job blocks; resume a key."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from jobqueue.cli.arguments import FOUND, count
from jobqueue.cli.audited import audit
from jobqueue.cli.output import Result, Subcommand, listed
from jobqueue.exceptions import InvalidValue
from jobqueue.masking import mask_text
from jobqueue.ordering.lanes import KeyState, hot_keys, stuck_keys
from jobqueue.transitions import resume
from jobqueue.validation import readable_key


def _declare(parser: ArgumentParser) -> None:
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


def _keys(using: str, given: dict[str, Any]) -> Result:
    if given["words"]:
        return _resume(using, given["words"])
    look = stuck_keys if given["stuck"] else hot_keys
    found = look(queue=given["queue"], limit=given["limit"], using=using)
    names = [f"{key.queue}  {readable_key(key.ordering_key)}" for key in found]
    lines = [f"{key.jobs}  {name}  {key.state}  first #{key.first_id}" for key, name in zip(found, names, strict=True)]
    lines.append(f"{len(found)} ordering keys {'are blocked' if given['stuck'] else 'have jobs'}")
    status = FOUND if found and given["stuck"] and given["fail_if_any"] else 0
    return Result({"keys": list(map(_facts, found))}, listed(lines, found, given), status)


def _resume(using: str, words: list[str]) -> Result:
    if len(words) != 3 or words[0] != "resume":
        raise InvalidValue("jobs keys takes either no words, or: resume QUEUE KEY. Nothing was changed.")
    queue, key = words[1], _key(words[2])
    done = resume(queue, key, using=using)
    audit("resume", {"queue": queue, "key": readable_key(key)}, changed=int(done), using=using)
    what = "is resumed" if done else "is not blocked by a failed job; nothing was changed"
    said = f"ordering key {readable_key(key)} of queue {queue} {what}"
    return Result({"resumed": done}, [said], 0 if done else FOUND)


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()
    except (UnicodeEncodeError, ValueError):
        raise InvalidValue(f"{text!r} is not an ordering key. Nothing was changed.") from None


def _facts(key: KeyState) -> dict[str, Any]:
    name = readable_key(key.ordering_key)
    # The hex digits would show a secret that is masked in the name.
    hexed = key.ordering_key.hex() if mask_text(name) == name else None
    return asdict(key) | {"ordering_key": name, "key_hex": hexed}


KEYS = Subcommand(
    "List the ordering keys with the most jobs, or those that a failed job blocks, and resume a key.", _declare, _keys
)
