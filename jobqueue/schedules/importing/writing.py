"""Makes schedules of the rows that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from jobqueue.compat import AnyTask
from jobqueue.db.clock import read_now
from jobqueue.exceptions import DatabaseBusy, InvalidValue, JobQueueError
from jobqueue.models import Schedule
from jobqueue.schedules.declaring import Terms, check_arguments, check_name, check_terms, declared, task_of
from jobqueue.schedules.editing import save
from jobqueue.schedules.importing import beat, django_q
from jobqueue.schedules.importing.rows import Row
from jobqueue.validation import did_you_mean

#: what can be imported
SOURCES = {"beat": beat.read, "django-q2": django_q.read}
#: ticks that are counted to find the last one
RUNS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Planned:
    """What becomes of one row. `outcome`: "new", "exists" (it is left alone) or "skipped"; then `why`."""

    name: str
    task: str
    outcome: str
    why: str = ""
    words: str = ""
    next_at: datetime | None = None
    disabled: str = ""
    lost: tuple[str, ...] = ()
    row: Row | None = None
    terms: Terms | None = None


def plan(source: str, mapping: Mapping[str, str], *, using: str, tables_in: str | None = None) -> list[Planned]:
    """What an import from "beat" or "django-q2" would do; nothing is written.

    `mapping`: paths of tasks there and here. `tables_in`: the alias of their tables; default `using`. Raises
    InvalidValue if the tables do not exist, or a path of `mapping` is not a task here or is not named there.
    """
    for path in mapping.values():
        task_of(path)
    rows = SOURCES[source](tables_in or using)
    paths = sorted({row.task for row in rows})
    for path in mapping:
        if path not in paths:
            raise InvalidValue(
                f"--map {path[:200]!r} is no task of a schedule of {source}{did_you_mean(path, paths)}. "
                "Nothing was written."
            )
    named = Schedule.objects.using(using).filter(name__in=[row.name for row in rows])
    # Also those of the code that no worker has announced yet.
    taken = {*named.values_list("name", flat=True), *declared()}
    now = read_now(using)
    return [_planned(row, mapping, taken, now) for row in rows]


def carry_out(plans: Sequence[Planned], *, by: str, using: str) -> list[Planned]:
    """Make those that are new, each in its own transaction. One that was made or is refused meanwhile says so."""
    return [_made(one, by, using) if one.outcome == "new" else one for one in plans]


def _planned(row: Row, mapping: Mapping[str, str], taken: set[str], now: datetime) -> Planned:
    skipped = partial(Planned, row.name, row.task, "skipped")
    if row.name in taken:
        return Planned(row.name, row.task, "exists", "a schedule of this name exists, and was left alone")
    if row.refused:
        return skipped(row.refused)
    if row.disabled and row.runs is not None:
        # Its end is reckoned from now, and may have passed when somebody enables it.
        return skipped(
            f"it is disabled and is to run {row.runs} times, which would count from now: enable it there and import it "
            "again, or make it here when it is to run"
        )
    try:
        task = _task(mapping.get(row.task, row.task))
        terms = _terms(row, now)
        check_arguments(check_name(row.name), task, row.args, row.kwargs)
    except JobQueueError as error:
        # The message is about a schedule; for a row only its last sentence is wrong.
        return skipped(str(error).replace(" Nothing was written.", "").partition(" Nothing was written;")[0])
    next_at = None if row.disabled else terms.timing.after(now)
    words = terms.timing.words
    return Planned(
        row.name, task.module_path, "new", "", words, next_at, row.disabled, row.lost, row=row, terms=terms
    )  # fmt: skip


def _task(path: str) -> AnyTask:
    try:
        return task_of(path)
    except InvalidValue:
        raise InvalidValue(f"no task is called {path!r:.200}: declare it, or name another one with --map") from None


def _terms(row: Row, now: datetime) -> Terms:
    terms = check_terms(row.name, **row.terms)
    if row.runs is None:
        return terms
    if row.runs > RUNS_MAX:
        raise InvalidValue(f"it is to run {row.runs} times; at most {RUNS_MAX} are counted. Nothing was written.")
    ticks = terms.timing.first(row.runs, now)
    if not ticks:
        return terms
    last = min(filter(None, (terms.timing.end_at, ticks[-1])))
    return replace(terms, timing=replace(terms.timing, end_at=last))


def _made(one: Planned, by: str, using: str) -> Planned:
    assert one.row is not None
    assert one.terms is not None
    if Schedule.objects.using(using).filter(name=one.name).exists():
        return replace(one, outcome="exists", why="a schedule of this name exists, and was left alone")
    row, reason = one.row, one.disabled
    try:
        save(
            one.name, task_of(one.task), row.args, row.kwargs, one.terms,
            by=by, using=using, enabled=not reason, reason=reason,
        )  # fmt: skip
    except DatabaseBusy:
        raise
    except JobQueueError as error:
        return replace(one, outcome="skipped", why=str(error))
    return one
