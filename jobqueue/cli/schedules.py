"""The sub-command schedules: list schedules and their ticks; run, enable and disable one; import those of others."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from django.db import connections

from jobqueue import schedules
from jobqueue.cli.arguments import FOUND, count, read_words
from jobqueue.cli.audited import audit, author
from jobqueue.cli.output import Result, Results, Subcommand, aligned, confirm
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of
from jobqueue.schedules import Known
from jobqueue.schedules.declaring import declare_settings
from jobqueue.schedules.importing import SOURCES, Planned, carry_out, plan
from jobqueue.schedules.listing import PREVIEW_MAX, timing_of
from jobqueue.tasks import registry

#: form -> the options that it takes
FORMS: dict[str, tuple[str, ...]] = {
    "list": (),
    "run NAME": (),
    "enable NAME": (),
    "disable NAME": ("reason",),
    "preview NAME": ("n",),
    "import beat": ("dry_run", "map", "yes", "from"),
    "import django-q2": ("dry_run", "map", "yes", "from"),
}
_HEAD = ("name", "when", "task", "next tick", "last tick", "last job", "state")
_TICKS = 5
#: what --json says of a schedule that is imported
_FACTS = ("name", "task", "outcome", "why", "words", "next_at", "disabled", "lost")


def _declare(parser: ArgumentParser) -> None:
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


def _schedules(using: str, given: dict[str, Any]) -> Results:
    verb, *names = read_words(given, FORMS)
    if verb == "list":
        return _list(using)
    # What the code declares counts for preview and in the messages, as in a worker.
    list(registry.discover())
    declare_settings()
    return _APPLY[verb](using, names[0], given)


def _list(using: str) -> Result:
    found = schedules.known(using=using)
    lines = ["no schedules yet: those in the code begin when a worker runs"]
    if found:
        lines = [*aligned([_HEAD, *map(_row, found)])]
    return Result({"schedules": list(map(asdict, found))}, lines)


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


def _run(using: str, name: str, given: dict[str, Any]) -> Result:
    job_id = schedules.run_now(name, using=using)
    audit("run", {"schedule": name, "job_ids": str(job_id)}, using=using)
    return Result({"job_id": job_id}, [f"job #{job_id} of schedule {name} was added"])


def _enable(using: str, name: str, given: dict[str, Any]) -> Result:
    changed = schedules.enable(name, using=using)
    audit("enable", {"schedule": name}, changed=int(changed), using=using)
    said = "fires again from its next tick on" if changed else "was enabled already; nothing was changed"
    return Result({"changed": changed}, [f"schedule {name} {said}"], 0 if changed else FOUND)


def _disable(using: str, name: str, given: dict[str, Any]) -> Result:
    changed = schedules.disable(name, reason=given["reason"], using=using)
    audit("disable", {"schedule": name}, changed=int(changed), reason=given["reason"] or "", using=using)
    said = "fires no tick until it is enabled" if changed else "was disabled already; nothing was changed"
    return Result({"changed": changed}, [f"schedule {name} {said}"], 0 if changed else FOUND)


def _preview(using: str, name: str, given: dict[str, Any]) -> Result:
    ticks = schedules.preview(name, given["n"] or _TICKS, using=using)
    words = timing_of(name, using).words
    shown = [f"{tick:%a %Y-%m-%d %H:%M:%S %z}" for tick in ticks] or ["there is no tick any more"]
    return Result({"words": words, "ticks": [tick.isoformat() for tick in ticks]}, [words, *shown])


def _import(using: str, source: str, given: dict[str, Any]) -> Iterator[Result]:
    if source not in SOURCES:
        raise InvalidValue(
            f"jobs schedules import reads {' or '.join(SOURCES)}, not {source[:40]!r}. Nothing was changed."
        )
    plans = plan(source, _mapping(given["map"] or []), using=using, tables_in=_tables_in(given["from"]))
    new = sum(one.outcome == "new" for one in plans)
    if not given["dry_run"] and new:
        if not given["yes"]:
            yield Result(lines=map(_planned, plans))
        if not confirm(f"{count_of(new, 'schedule')} would be made.", yes=given["yes"]):
            yield Result({"schedules": None}, status=FOUND)
            return
        plans = carry_out(plans, by=author()[:100], using=using)
        audit("import", {"source": source}, changed=sum(one.outcome == "new" for one in plans), using=using)
    counts = {kind: sum(one.outcome == kind for one in plans) for kind in ("new", "exists", "skipped")}
    facts = [{name: getattr(one, name) for name in _FACTS} for one in plans]
    made = f"{count_of(counts['new'], 'schedule')} {'would be made' if given['dry_run'] else 'made'}"
    said = f"{made}, {counts['exists']} left alone, {counts['skipped']} skipped"
    document = {"dry_run": given["dry_run"], **counts, "schedules": facts}
    yield Result(document, [*map(_planned, plans), said])


def _mapping(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new) or found.get(old, new) != new:
            raise InvalidValue(
                f"--map {pair[:200]!r} is not OLD=NEW, or names OLD twice. Nothing was changed; give the path of the "
                "task there and here."
            )
        found[old] = new
    return found


def _tables_in(alias: str | None) -> str | None:
    if alias is not None and alias not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        raise InvalidValue(f"--from {alias[:100]!r} is not in DATABASES ({known}). Nothing was changed.")
    return alias


def _planned(one: Planned) -> str:
    return "  ".join(_parts(one))


def _parts(one: Planned) -> Iterator[str]:
    yield from (one.outcome, one.name)
    if one.outcome != "new":
        yield one.why
        return
    yield from (one.task, one.words)
    yield f"next {one.next_at:%Y-%m-%d %H:%M:%S} UTC" if one.next_at else f"disabled: {one.disabled or 'no tick'}"
    yield from [f"without {', '.join(one.lost)}"] if one.lost else []


_APPLY: dict[str, Callable[[str, str, dict[str, Any]], Results]] = {
    "run": _run,
    "enable": _enable,
    "disable": _disable,
    "preview": _preview,
    "import": _import,
}
SCHEDULES = Subcommand(
    "List schedules and their next ticks; run, enable and disable one; import those of other packages.",
    _declare,
    _schedules,
)
