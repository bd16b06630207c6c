"""jobs schedules: list schedules and their next ticks; run, enable and disable one; import those of other packages."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue import schedules
from jobqueue.cli import schedule_import
from jobqueue.cli.arguments import FOUND, add_database, add_json, count
from jobqueue.cli.audited import audit
from jobqueue.cli.dead_letters import instant
from jobqueue.cli.tables import aligned
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import one_line
from jobqueue.schedules import Known
from jobqueue.schedules.from_settings import declare_settings
from jobqueue.schedules.listing import PREVIEW_MAX, timing_of
from jobqueue.tasks import registry

#: verb -> the options that it takes
VERBS: dict[str, frozenset[str]] = {
    "list": frozenset(),
    "run": frozenset(),
    "enable": frozenset(),
    "disable": frozenset({"reason"}),
    "preview": frozenset({"n"}),
    "import": frozenset({"dry_run", "map", "yes", "from"}),
}
_HEAD = ("name", "when", "task", "next tick", "last tick", "last job", "state")
_TICKS = 5


def declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="VERB NAME",
        help="run, enable, disable or preview the schedule NAME; import beat or django-q2; without a verb, list all",
    )
    parser.add_argument("--reason", default=None, metavar="TEXT", help="why; disable needs it")
    parser.add_argument(
        "--n", type=count(PREVIEW_MAX), default=None, metavar="N", help=f"ticks that preview shows (default {_TICKS})"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what import would do; change nothing")
    parser.add_argument(
        "--map", action="append", default=None, metavar="OLD=NEW", help="import: the task NEW runs what OLD ran"
    )
    parser.add_argument(
        "--from",
        default=None,
        metavar="ALIAS",
        help="import: where the other package's tables are (default: --database)",
    )
    parser.add_argument("--yes", action="store_true", help="import: do not ask")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    verb, name = _words(given["words"])
    _check_options(verb, given)
    if verb == "list":
        return _list(out, using, given)
    # What the code declares counts for preview and in the messages, as in a worker.
    list(registry.discover())
    declare_settings()
    return _APPLY[verb](out, using, name, given)


def _words(words: list[str]) -> tuple[str, str]:
    verb, names = (words[0], words[1:]) if words else ("list", [])
    if verb not in VERBS or len(names) != (0 if verb == "list" else 1):
        raise InvalidValue(
            "jobs schedules takes no words, or: list, run NAME, enable NAME, disable NAME, preview NAME, import beat, "
            "import django-q2. Nothing was changed."
        )
    return verb, names[0] if names else ""


def _check_options(verb: str, given: dict[str, Any]) -> None:
    for option in ("reason", "n", "dry_run", "map", "yes", "from"):
        if given[option] not in (None, False) and option not in VERBS[verb]:
            takers = ", ".join(name for name, taken in VERBS.items() if option in taken)
            shown = option.replace("_", "-")
            raise InvalidValue(f"--{shown} goes with {takers}, not with {verb}. Nothing was changed.")
    if verb == "disable" and given["reason"] is None:
        raise InvalidValue("jobs schedules disable needs --reason, for whoever finds it. Nothing was changed.")


def _list(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    found = schedules.known(using=using)
    if given["json"]:
        facts = [{name: instant(value) for name, value in asdict(one).items()} for one in found]
        out.write(json.dumps({"version": 1, "schedules": facts}))
    elif given["verbosity"] > 0 and not found:
        out.write("no schedule is known: those of the code begin when a worker runs")
    elif given["verbosity"] > 0:
        for line in aligned([_HEAD, *map(_row, found)]):
            out.write(line)
    return 0


def _row(one: Known) -> tuple[str, ...]:
    ticks = [f"{at:%Y-%m-%d %H:%M:%S}" if at else "-" for at in (one.next_at, one.last_tick_at)]
    job = f"#{one.last_job_id}" if one.last_job_id else "-"
    return (one.name, when(one), one.task, *ticks, job, ", ".join(_state(one)))


def when(one: Known) -> str:
    """The expression in words; of a single tick its instant."""
    if one.start_at is not None and one.start_at == one.end_at:
        return f"once at {one.start_at:%Y-%m-%d %H:%M:%S} (UTC)"
    return one.words


def _state(one: Known) -> Iterable[str]:
    yield "enabled" if one.enabled else f"disabled: {one.reason}"
    yield from ["late: no worker fires it"] if one.late else []
    yield from [f"cannot be read here: {one.problem}"] if one.problem else []
    yield from ["retired"] if one.retired_at else []
    yield from [f"edited by {one.edited_by}" if one.edited_by else "edited"] if one.edited else []
    yield from ["differs from the code"] if one.differs else []


def _run(out: OutputWrapper, using: str, name: str, given: dict[str, Any]) -> int:
    job_id = schedules.run_now(name, using=using)
    audit("run", {"schedule": name, "job_ids": str(job_id)}, using=using)
    return _tell(out, given, {"job_id": job_id}, f"job #{job_id} of schedule {name} was added")


def _enable(out: OutputWrapper, using: str, name: str, given: dict[str, Any]) -> int:
    changed = schedules.enable(name, using=using)
    audit("enable", {"schedule": name}, changed=int(changed), using=using)
    said = "fires again from its next tick on" if changed else "was enabled already; nothing was changed"
    return _tell(out, given, {"changed": changed}, f"schedule {name} {said}", changed=changed)


def _disable(out: OutputWrapper, using: str, name: str, given: dict[str, Any]) -> int:
    changed = schedules.disable(name, reason=given["reason"], using=using)
    audit("disable", {"schedule": name}, changed=int(changed), reason=given["reason"] or "", using=using)
    said = "fires no tick until it is enabled" if changed else "was disabled already; nothing was changed"
    return _tell(out, given, {"changed": changed}, f"schedule {name} {said}", changed=changed)


def _preview(out: OutputWrapper, using: str, name: str, given: dict[str, Any]) -> int:
    ticks = schedules.preview(name, given["n"] or _TICKS, using=using)
    words = timing_of(name, using).words
    if given["json"]:
        return _tell(out, given, {"words": words, "ticks": [tick.isoformat() for tick in ticks]}, "")
    shown = [f"{tick:%a %Y-%m-%d %H:%M:%S %z}" for tick in ticks] or ["there is no tick any more"]
    return _tell(out, given, {}, "\n".join(map(one_line, [words, *shown])))


def _import(out: OutputWrapper, using: str, name: str, given: dict[str, Any]) -> int:
    return schedule_import.run(out, using, name, given)


def _tell(out: OutputWrapper, given: dict[str, Any], facts: dict[str, Any], said: str, *, changed: bool = True) -> int:
    if given["json"]:
        out.write(json.dumps({"version": 1, **facts}))
    elif given["verbosity"] > 0:
        for line in said.splitlines():
            out.write(one_line(line))
    return 0 if changed else FOUND


_APPLY: dict[str, Callable[[OutputWrapper, str, str, dict[str, Any]], int]] = {
    "run": _run,
    "enable": _enable,
    "disable": _disable,
    "preview": _preview,
    "import": _import,
}
