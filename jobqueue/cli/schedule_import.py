"""jobs schedules import: make schedules of those of django-celery-beat or django-q2."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import OutputWrapper
from django.db import connections

from jobqueue.cli.arguments import FOUND
from jobqueue.cli.audited import audit, author
from jobqueue.cli.dead_letters import confirm, instant
from jobqueue.exceptions import InvalidValue
from jobqueue.log_format import count_of, one_line
from jobqueue.schedules.importing.writing import SOURCES, Planned, carry_out, plan

_FACTS = ("name", "task", "outcome", "why", "words", "next_at", "disabled", "lost")


def run(out: OutputWrapper, using: str, source: str, given: dict[str, Any]) -> int:
    if source not in SOURCES:
        raise InvalidValue(
            f"jobs schedules import reads {' or '.join(SOURCES)}, not {source[:40]!r}. Nothing was changed."
        )
    plans = plan(source, _mapping(given["map"] or []), using=using, tables_in=_tables_in(given["from"]))
    new = sum(one.outcome == "new" for one in plans)
    if not given["dry_run"] and new:
        if not given["json"] and given["verbosity"] > 0 and not given["yes"]:
            _print(out, plans)
        if not confirm(f"{count_of(new, 'schedule')} would be made.", yes=given["yes"]):
            if given["json"]:
                out.write(json.dumps({"version": 1, "schedules": None}))
            return FOUND
        plans = carry_out(plans, by=author()[:100], using=using)
        audit("import", {"source": source}, changed=sum(one.outcome == "new" for one in plans), using=using)
    _tell(out, plans, given)
    return 0


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


def _tell(out: OutputWrapper, plans: Sequence[Planned], given: dict[str, Any]) -> None:
    counts = {kind: sum(one.outcome == kind for one in plans) for kind in ("new", "exists", "skipped")}
    if given["json"]:
        facts = [{name: instant(getattr(one, name)) for name in _FACTS} for one in plans]
        out.write(json.dumps({"version": 1, "dry_run": given["dry_run"], **counts, "schedules": facts}))
    elif given["verbosity"] > 0:
        _print(out, plans)
        made = "would be made" if given["dry_run"] else "made"
        new = count_of(counts["new"], "schedule")
        out.write(f"{new} {made}, {counts['exists']} left alone, {counts['skipped']} skipped")


def _print(out: OutputWrapper, plans: Sequence[Planned]) -> None:
    for one in plans:
        out.write(one_line("  ".join(_parts(one))))


def _parts(one: Planned) -> Iterator[str]:
    yield from (one.outcome, one.name)
    if one.outcome != "new":
        yield one.why
        return
    yield from (one.task, one.words)
    yield f"next {one.next_at:%Y-%m-%d %H:%M:%S} UTC" if one.next_at else f"disabled: {one.disabled or 'no tick'}"
    yield from [f"without {', '.join(one.lost)}"] if one.lost else []
