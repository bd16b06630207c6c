"""The sub-commands queues and keys: list queues and ordering keys; pause, drain and limit a queue, and resume a key."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from django.utils import translation

from jobqueue import flow
from jobqueue.base.validation import readable_key
from jobqueue.cli.arguments import FOUND, count, read_words
from jobqueue.cli.audited import audit, author
from jobqueue.cli.output import Result, Subcommand, aligned, listed
from jobqueue.exceptions import InvalidValue
from jobqueue.flow import KEEP, wording
from jobqueue.flow.overview import QueueState, place_state, queue_states
from jobqueue.flow.rules import read_until
from jobqueue.log_format import count_of
from jobqueue.masking import mask_text
from jobqueue.ordering.lanes import KeyState, hot_keys, stuck_keys
from jobqueue.tasks import registry
from jobqueue.transitions import resume


def _declare_keys(parser: ArgumentParser) -> None:
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
    words = read_words(given, {"list": (), "resume QUEUE KEY": ()})
    if words[0] == "resume":
        return _resume_key(using, words[1], _key(words[2]))
    look = stuck_keys if given["stuck"] else hot_keys
    found = look(queue=given["queue"], limit=given["limit"], using=using)
    names = [f"{key.queue}  {readable_key(key.ordering_key)}" for key in found]
    lines = [f"{key.jobs}  {name}  {key.state}  first #{key.first_id}" for key, name in zip(found, names, strict=True)]
    lines.append(f"{len(found)} ordering keys {'are blocked' if given['stuck'] else 'have jobs'}")
    status = FOUND if found and given["stuck"] and given["fail_if_any"] else 0
    return Result({"keys": list(map(_key_facts, found))}, listed(lines, found, given), status)


def _resume_key(using: str, queue: str, key: bytes) -> Result:
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


def _key_facts(key: KeyState) -> dict[str, Any]:
    name = readable_key(key.ordering_key)
    # The hex digits would show a secret that is masked in the name.
    hexed = key.ordering_key.hex() if mask_text(name) == name else None
    return asdict(key) | {"ordering_key": name, "key_hex": hexed}


KEYS = Subcommand(
    "List the ordering keys with the most jobs, or those that a failed job blocks, and resume a key.",
    _declare_keys,
    _keys,
)


#: form -> the options that it takes
FORMS: dict[str, tuple[str, ...]] = {
    "list": (),
    "list NAME": (),
    "pause NAME": ("reason", "until", "task", "by"),
    "resume NAME": ("task", "by"),
    "drain NAME": ("reason", "by"),
    "limit NAME": ("task", "concurrency", "rate", "clear"),
}
_NONE = "none"
_HEAD = ("queue", "ready", "running", "state", "concurrency", "rate", "why")


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="VERB NAME",
        help="pause, resume, drain or limit the queue NAME, or list it; without a verb, list all queues",
    )
    parser.add_argument("--reason", default=None, metavar="TEXT", help="why; pause and drain need it")
    parser.add_argument(
        "--until", default=None, metavar="WHEN", help="end of the pause: 2h from now, or 2026-01-31T18:00+09:00"
    )
    parser.add_argument("--task", default=None, metavar="PATH", help="only jobs of this task in the queue")
    parser.add_argument(
        "--concurrency", type=_concurrency, default=None, metavar="N", help="jobs that run at once; 0 pauses; none"
    )
    parser.add_argument(
        "--rate", default=None, metavar="R", help="starts per period: 10/s, 100/m, 5/30s; 0 pauses; none"
    )
    parser.add_argument(
        "--clear", action="store_true", help="limits of the settings, or of the task's code, count again"
    )
    parser.add_argument("--by", default=None, metavar="NAME", help="who does it (default: the user of this process)")


def _queues(using: str, given: dict[str, Any]) -> Result:
    verb, *names = read_words(given, FORMS)
    limits = given["concurrency"] is not None or given["rate"] is not None
    if verb == "limit" and limits == given["clear"]:
        raise InvalidValue("jobs queues limit takes --concurrency, --rate or both; or --clear. Nothing was changed.")
    # English, as everything on the command line.
    with translation.override(None):
        if verb == "list":
            return _listed(queue_states(using=using, names=names or None))
        (name,) = names
        if given["task"] is not None:
            list(registry.discover())
        changed, say = _APPLY[verb](name, using, given)
        place = {"queue": name} | ({"task": given["task"]} if given["task"] else {})
        audit(verb, place, changed=int(changed), reason=_told(given), by=given["by"], using=using)
        state = place_state(name, given["task"], using=using)
        document = {"changed": changed, "queue": _facts(state)}
        return Result(document, [" ".join(say(state))], 0 if changed else FOUND)


Done = tuple[bool, Callable[[QueueState], Iterable[str]]]


def _pause(name: str, using: str, given: dict[str, Any]) -> Done:
    until = None if given["until"] is None else read_until(given["until"], using=using)
    by = _author(given)
    flow.pause(name, task=given["task"], reason=given["reason"], until=until, by=by, using=using)
    return True, wording.after_pause


def _drain(name: str, using: str, given: dict[str, Any]) -> Done:
    flow.drain(name, reason=given["reason"], by=_author(given), using=using)
    return True, wording.after_drain


def _resume(name: str, using: str, given: dict[str, Any]) -> Done:
    changed = flow.resume(name, task=given["task"], by=_author(given), using=using)
    return changed, lambda state: wording.after_resume(state, changed)


def _limit(name: str, using: str, given: dict[str, Any]) -> Done:
    task, most, rate = given["task"], given["concurrency"], given["rate"]
    if given["clear"]:
        changed = flow.clear_limit(name, task=task, using=using)
        return changed, lambda state: wording.after_clear(state, changed)
    flow.set_limit(
        name,
        task=task,
        concurrency=KEEP if most is None else None if most == _NONE else most,
        rate=KEEP if rate is None else None if rate == _NONE else rate,
        using=using,
    )
    return True, lambda state: wording.after_limit(state, concurrency=most is not None, rate=rate is not None)


_APPLY: dict[str, Callable[..., Done]] = {"pause": _pause, "drain": _drain, "resume": _resume, "limit": _limit}


def _told(given: dict[str, Any]) -> str:
    """The reason, or what was set."""
    options = [f"{name} {given[name]}" for name in ("concurrency", "rate") if given[name] is not None]
    return given["reason"] or ("clear" if given["clear"] else ", ".join(options))


def _author(given: dict[str, Any]) -> str:
    return author() if given["by"] is None else str(given["by"])


def _concurrency(text: str) -> int | str:
    if text == _NONE:
        return _NONE
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentTypeError(f"{text[:40]!r} is neither a whole number from 0 nor 'none'")
    return int(text)


def _listed(states: list[QueueState]) -> Result:
    lines = ["no queues yet: there are no jobs, and nothing is set"]
    if states:
        lines = [*aligned([_HEAD, *map(_row, states)], numbers=(1, 2))]
    return Result({"queues": list(map(_facts, states))}, lines)


def _facts(state: QueueState) -> dict[str, Any]:
    """A queue or task for JSON."""
    return asdict(state) | {"starts_nothing": state.starts_nothing}


def _row(state: QueueState) -> tuple[str, ...]:
    if state.task:
        name, counts = f"  {state.task}", ("", "")
    else:
        name, counts = state.queue, (wording.count_text(state.ready or 0), wording.count_text(state.running or 0))
    limits = wording.concurrency_text(state) or "-", state.rate or "-"
    return (name, *counts, _state(state), *limits, ", ".join(_why(state)))


def _state(state: QueueState) -> str:
    return state.mode or ("paused" if state.starts_nothing else "running")


def _why(state: QueueState) -> Iterable[str]:
    """Why it is paused or draining, who has done it, and until when; and what does not hold everywhere."""
    if state.mode:
        yield state.reason
        yield from [f"by {state.by}"] if state.by else []
        yield from [f"until {wording.instant_text(state.until)}"] if state.until else []
    if state.has_limit_of_0:
        yield "limit of 0"
    if state.set_here:
        yield f"{' and '.join(state.set_here)} set by hand"
    if state.unaware_workers:
        yield f"partial: {count_of(state.unaware_workers, 'worker')} without it"


QUEUES = Subcommand("List queues with what is set for them; pause, resume, drain and limit a queue.", _declare, _queues)
