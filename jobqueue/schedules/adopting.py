"""Puts a definition in force in the row of a schedule, in one transaction.

A schedule without a name of its own has the path of its task. When that gets another path and names the old one in
aliases=, workers of both versions announce a schedule each during the deploy. They are one schedule, so its row goes on
under the new name, and no tick fires twice: the name that was first seen last counts, as the versions of one name do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from django.db import Error, IntegrityError, OperationalError, connections

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import Schedule, ScheduleVersion
from jobqueue.schedules.deciding import Said, begin_anew, decide, set_next
from jobqueue.schedules.definitions import FORMERLY, digest_of, from_json

logger = logging.getLogger("jobqueue.worker")

#: how long to wait for a transaction, as that of an operator, that has given another schedule the same name
_NAME_SECONDS = 0.3
#: name of a schedule whose row does not exist -> the name that its row has now
Moves: TypeAlias = dict[str, str]


class Live(NamedTuple):
    """The version of a name that is to be in force."""

    name: str
    pk: int
    digest: str
    seen_at: datetime


def adopt(number: int, using: str, said: Said) -> int:
    """Put one version in force whose schedule exists; 1 if that has changed it.

    0 also if a transaction of somebody else has locked the row, as that of an operator: a worker waits for nobody.
    """
    with vendor(using).transaction(connections[using]):
        version = _versions([number], using)[0]
        row = locked(version.name, using, skip_locked=True)
        if row is None or (row.announced_digest == version.digest and row.retired_at is None):
            return 0
        adopt_locked(row, version, using, said)
        row.save(using=using)
        return 1


def adopt_locked(row: Any, version: Any, using: str, said: Said) -> None:
    """Set the columns of a version in a locked row with `now`, and save nothing."""
    row.announced_digest, row.announced_at = version.digest, UtcNow()
    row.updated_at = UtcNow()
    if row.edited or row.source == Schedule.Source.ADMIN:
        text = (
            "the schedule %r was changed by hand (%s), and workers now announce another definition: what was "
            "changed by hand stays in force until it is taken back"
        )
        said.append(partial(logger.warning, text, row.name, row.edited_by or "an operator"))
    else:
        row.source = version.source
        put_in_force(row, version.definition, using, said)
    if row.retired_at is not None:
        row.retired_at = None
        begin_anew(row, using)
        set_next(row, from_json(row.definition).timing.after(row.now))


def insert(numbers: Sequence[int], using: str, said: Said) -> int:
    """Put versions in force whose schedules do not exist; how many were made. All or none, if one cannot be made.

    Raises DatabaseBusy if another transaction is inserting one of them, as that of an operator.
    """
    with vendor(using).transaction(connections[using]):
        rows = [_new(version, using, said) for version in _versions(numbers, using)]
        try:
            with taking_names(using):
                Schedule.objects.using(using).bulk_create(rows)
        except IntegrityError:
            if len(rows) > 1:
                raise
            return 0  # another worker has made it
        for row in rows:
            said.append(partial(logger.info, "schedule %r: first tick at %s", row.name, row.next_at or "no time"))
        return len(rows)


@contextmanager
def taking_names(using: str) -> Iterator[None]:
    """A savepoint in which schedules get names. Raises DatabaseBusy if another transaction is giving one of them."""
    locks = vendor(using).locks
    try:
        with locks.brief_transaction(connections[using], _NAME_SECONDS):
            yield
    except OperationalError as error:
        if not locks.is_lock_timeout(error):
            raise
        raise DatabaseBusy(
            "another transaction has given a schedule the same name and has not come to its end. Nothing was written; "
            "look for a process that is frozen, or a transaction that does not end."
        ) from error


def _new(version: Any, using: str, said: Said) -> Any:
    row: Any = Schedule(
        name=version.name,
        source=version.source,
        announced_digest=version.digest,
        # The first tick is the first one after the schedule was seen.
        decided_until=version.now,
    )
    row.now = version.now
    put_in_force(row, version.definition, using, said)
    return row


def _versions(numbers: Sequence[int], using: str) -> list[Any]:
    rows = ScheduleVersion.objects.using(using).filter(pk__in=numbers).order_by("pk")
    return list(rows.annotate(now=Selected(UtcNow())))


def locked(name: str, using: str, *, skip_locked: bool = False) -> Any:
    """The row of a schedule, locked, with the time of the database as `now`; None if there is none.

    `skip_locked`: also if another transaction has locked it. Else it is waited for.
    """
    rows = Schedule.objects.using(using).filter(name=name).annotate(now=Selected(UtcNow()))
    return vendor(using).locks.lock_own(rows, skip_locked=skip_locked).first()


def put_in_force(row: Any, document: Mapping[str, Any], using: str, said: Said) -> None:
    """Set the columns of a definition in a locked row with `now`, and save nothing.

    If its ticks change, those of before are decided up to now, by the definition of before. Else the jobs of ticks that
    are due already have the new definition.
    """
    definition = from_json(document)
    following = _following(row.decided_until, definition)
    fires = row.pk is not None and row.enabled and row.retired_at is None
    before = row.definition.get("timing") if isinstance(row.definition, Mapping) else None
    if fires and before != document["timing"]:
        _end_before(row, using, said)
        following = _following(row.now, definition)
    row.definition, row.digest = dict(document), digest_of(document)
    row.task = definition.template.task or ""
    set_next(row, following)


def _following(instant: datetime, definition: Any) -> datetime | None:
    tick: datetime | None = definition.timing.after(instant)
    return tick


def _end_before(row: Any, using: str, said: Said) -> None:
    """Decide the ticks of the definition that ends now."""
    try:
        while decide(row, row.now, using, said).more:
            pass
    except (Error, DatabaseBusy):
        raise
    except Exception as error:
        # It may be what the new definition corrects.
        text = f"{type(error).__name__}: {error}"
        said.append(partial(logger.warning, "skipped the last ticks of schedule %r: %s", row.name, text))
    row.decided_until = row.now


def set_back(name: str, using: str, said: Said) -> int:
    """Let a schedule go on that is decided up to a later time than it is; 1 if that has changed it."""
    with vendor(using).transaction(connections[using]):
        row = locked(name, using, skip_locked=True)
        if row is None or row.decided_until <= row.now:
            return 0
        text = "the database clock was set back: schedule %r continues at %s"
        said.append(partial(logger.warning, text, name, row.now))
        row.decided_until = row.now
        set_next(row, from_json(row.definition).timing.after(row.now))
        row.save(using=using)
        return 1


def renames(newest: Mapping[str, Live], found: Mapping[str, object], using: str) -> tuple[Moves, set[str]]:
    """Which names take over the rows of which others, and the names that no row may have: those of before."""
    moves: Moves = {}
    superseded: set[str] = set()
    for later, earlier in _pairs(newest, using):
        one, other = newest.get(later), newest.get(earlier)
        if one is not None and other is not None and (other.seen_at, other.pk) > (one.seen_at, one.pk):
            later, earlier = earlier, later  # the deploy was taken back
        elif one is None:
            later, earlier = earlier, later  # no worker has the new name any more
        if later not in newest:
            continue
        superseded.add(earlier)
        if later not in found and earlier in found:
            moves[later] = earlier
    return moves, superseded


def _pairs(newest: Mapping[str, Live], using: str) -> list[tuple[str, str]]:
    """(name, earlier name), as the definitions say that live workers announce, or that are in force."""
    versions = ScheduleVersion.objects.using(using).filter(pk__in=[one.pk for one in newest.values()])
    rows = Schedule.objects.using(using).filter(retired_at__isnull=True).exclude(name__in=[*newest])
    documents = [*versions.values_list("name", "definition"), *rows.values_list("name", "definition")]
    return [(name, earlier) for name, document in documents for earlier in _earlier_names(document)]


def _earlier_names(document: Any) -> list[str]:
    found = document.get(FORMERLY, ()) if isinstance(document, dict) else ()
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def take_over(one: Live, earlier: str, using: str, said: Said) -> int:
    """Give the row of an earlier name the name and the definition of a version; 1 if that has changed it."""
    with vendor(using).transaction(connections[using]):
        version = ScheduleVersion.objects.using(using).annotate(now=Selected(UtcNow())).get(pk=one.pk)
        row = locked(earlier, using, skip_locked=True)
        if row is None:
            return 0
        row.name = one.name
        adopt_locked(row, version, using, said)
        try:
            with taking_names(using):
                row.save(using=using)
        except IntegrityError:
            return 0  # another worker has made it
        text = "schedule %r continues as %r: its task was renamed"
        said.append(partial(logger.info, text, earlier, one.name))
        return 1
