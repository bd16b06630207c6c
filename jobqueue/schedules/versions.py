"""Which definition of a schedule is in force, while workers of several versions of the code run.

Each worker announces what its code and settings declare. Of the versions that live workers have, the one that was
first seen last is in force. So the new one wins at the start of a rolling deploy and stays, and the old one is in force
again soon after the last worker that has the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.db import IntegrityError, connections, transaction

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InvalidValue, WrongSettings
from jobqueue.models import Schedule, ScheduleVersion
from jobqueue.payload import JSON
from jobqueue.schedules.declaring import Declared, declared
from jobqueue.schedules.definitions import define, digest_of, from_json, to_json
from jobqueue.schedules.firing import decide, set_next

logger = logging.getLogger("jobqueue.worker")

#: between two announcements of a worker
ANNOUNCE_SECONDS = 10.0
#: a version that nobody has announced for so long belongs to no live worker
LAPSE_SECONDS = 60.0
#: a schedule that nobody has announced for so long does not fire, and is retired by a worker that runs for so long
RETIRE_SECONDS = 600.0
#: a clock that was set back by less is waited for
CLOCK_SECONDS = 5.0
# Other workers announce the same, so most announcements write nothing.
_FRESH_SECONDS = ANNOUNCE_SECONDS / 2


def announce(using: str) -> list[int]:
    """Announce what this process declares for a database, and put it in force; the ids of its versions.

    A schedule whose definition cannot be made, as when a key function fails, is left out and logged.
    """
    ids = []
    for one in list(declared().values()):
        if getattr(one.task.get_backend(), "database", None) != using:
            continue
        try:
            document = document_of(one)
        except Exception:
            logger.exception("the schedule %r is left out, because its jobs cannot be made", one.name)
            continue
        version = partial(_announce, one.name, one.source, document, using)
        ids.append(retry_transient("schedule", version, using=using))
    if ids:
        settle(using)
    return ids


def document_of(one: Declared) -> dict[str, JSON]:
    """The definition of a declared schedule. Its functions of the arguments are called here."""
    terms = one.terms
    values = {name: getattr(terms, name) for name in ("missed", "missed_limit", "overlap", "jitter_seconds")}
    return to_json(define(one.task, one.args, one.kwargs, terms.timing, values))


def _announce(name: str, source: str, document: dict[str, JSON], using: str) -> int:
    digest = digest_of(document)
    rows = ScheduleVersion.objects.using(using).filter(name=name, digest=digest)
    with transaction.atomic(using=using):
        # Lapsed: workers have it again, as after a deploy was taken back.
        rows.filter(announced_at__lt=UtcNowPlus(-LAPSE_SECONDS)).update(seen_at=UtcNow(), announced_at=UtcNow())
        found = rows.values_list("pk", flat=True).first()
        if found is None:
            row = ScheduleVersion(name=name, digest=digest, source=source, definition=document)
            try:
                with transaction.atomic(using=using):
                    row.save(using=using, force_insert=True)
                found = row.pk
            except IntegrityError:
                found = rows.values_list("pk", flat=True).get()
    keep_announced([found], using)
    return int(found)


def keep_announced(ids: Sequence[int], using: str) -> None:
    """Note that live workers have these versions, unless another one has just done so."""
    rows = ScheduleVersion.objects.using(using).filter(pk__in=ids)
    stale = UtcNowPlus(-_FRESH_SECONDS)
    names = {*rows.values_list("name", flat=True)}

    def work() -> None:
        rows.filter(announced_at__lt=stale).update(announced_at=UtcNow())
        own = Schedule.objects.using(using).filter(name__in=names, announced_at__lt=stale)
        own.exclude(source=Schedule.Source.ADMIN).update(announced_at=UtcNow())

    if names:
        retry_transient("schedule", work, using=using)


def settle(using: str) -> int:
    """Put the versions in force that have to be; how many schedules have changed."""
    live = ScheduleVersion.objects.using(using).filter(announced_at__gte=UtcNowPlus(-LAPSE_SECONDS))
    newest = {version.name: version for version in live.order_by("seen_at", "pk").defer("definition")}
    known = Schedule.objects.using(using).filter(name__in=[*newest])
    found = {
        name: (digest, retired) for name, digest, retired in known.values_list("name", "announced_digest", "retired_at")
    }
    changed = [version.pk for name, version in newest.items() if found.get(name) != (version.digest, None)]
    changes = sum(retry_transient("schedule", partial(_adopt, number, using), using=using) for number in changed)
    return changes + _follow_clock(using)


def _follow_clock(using: str) -> int:
    """Let schedules go on after the clock of the server was set back: those that are decided up to a later time.

    A tick that was fired has a row, so it does not fire again when its time comes a second time.
    """
    ahead = Schedule.objects.using(using).filter(decided_until__gt=UtcNowPlus(CLOCK_SECONDS), look_at__isnull=False)
    names = list(ahead.values_list("name", flat=True))
    return sum(retry_transient("schedule", partial(_set_back, name, using), using=using) for name in names)


def _set_back(name: str, using: str) -> int:
    with vendor(using).transaction(connections[using]):
        row = locked(name, using)
        if row is None or row.decided_until <= row.now:
            return 0
        logger.warning("the clock of the database was set back: schedule %r goes on at %s", name, row.now)
        row.decided_until = row.now
        set_next(row, from_json(row.definition).timing.after(row.now))
        row.save(using=using)
        return 1


def retire(using: str) -> list[str]:
    """Retire the schedules of code and settings that no worker announces any more; their names."""
    rows = (
        Schedule.objects.using(using)
        .filter(retired_at__isnull=True, announced_at__lt=UtcNowPlus(-RETIRE_SECONDS))
        .exclude(source=Schedule.Source.ADMIN)
    )
    retired = []
    for number, name in list(rows.values_list("pk", "name")):
        changes: dict[str, Any] = {"retired_at": UtcNow(), "next_at": None, "look_at": None, "updated_at": UtcNow()}
        change = partial(rows.filter(pk=number).update, **changes)
        if retry_transient("schedule", change, using=using):
            logger.warning(
                "the schedule %r is retired: no worker has announced it for %d s, so it is in neither code nor "
                "settings any more", name, RETIRE_SECONDS,
            )  # fmt: skip
            retired.append(name)
    return retired


def _adopt(number: int, using: str) -> bool:
    """Put one version in force, in one transaction."""
    with vendor(using).transaction(connections[using]):
        version = ScheduleVersion.objects.using(using).annotate(now=Selected(UtcNow())).get(pk=number)
        row = locked(version.name, using)
        if row is None:
            return _insert(version, using)
        if row.announced_digest == version.digest and row.retired_at is None:
            return False
        row.announced_digest, row.announced_at = version.digest, UtcNow()
        row.updated_at = UtcNow()
        if row.edited or row.source == Schedule.Source.ADMIN:
            logger.warning(
                "the schedule %r was changed by hand (%s), and workers now announce another definition: what was "
                "changed by hand stays in force until it is taken back", row.name, row.edited_by or "an operator",
            )  # fmt: skip
        else:
            row.source = version.source
            put_in_force(row, version.definition, using)
        if row.retired_at is not None:
            row.retired_at, row.decided_until = None, row.now
            set_next(row, from_json(row.definition).timing.after(row.now))
        row.save(using=using)
        return True


def locked(name: str, using: str) -> Any:
    """The row of a schedule, locked, with the time of the database as `now`; None if there is none."""
    rows = Schedule.objects.using(using).filter(name=name).annotate(now=Selected(UtcNow()))
    return vendor(using).locks.lock_own(rows, skip_locked=False).first()


def put_in_force(row: Any, document: Mapping[str, Any], using: str) -> None:
    """Set the columns of a definition in a locked row with `now`, and save nothing.

    If its ticks change, those of before are decided up to now, by the definition of before. Else the jobs of ticks that
    are due already have the new definition.
    """
    definition = from_json(document)
    fires = row.pk is not None and row.enabled and row.retired_at is None
    if fires and row.definition["timing"] != document["timing"]:
        _end_before(row, using)
    row.definition, row.digest = dict(document), digest_of(document)
    row.task = definition.template.task or ""
    set_next(row, definition.timing.after(row.decided_until))


def _end_before(row: Any, using: str) -> None:
    """Decide the ticks of the definition that ends now."""
    try:
        while decide(row, row.now, using).more:
            pass
    except (InvalidValue, WrongSettings) as error:
        logger.warning("the last ticks of the schedule %r were left out: %s", row.name, error)
    row.decided_until = row.now


def _insert(version: Any, using: str) -> bool:
    row: Any = Schedule(
        name=version.name,
        source=version.source,
        announced_digest=version.digest,
        # The first tick is the first one after the schedule was seen.
        decided_until=version.now,
    )
    row.now = version.now
    put_in_force(row, version.definition, using)
    try:
        with transaction.atomic(using=using):
            row.save(using=using, force_insert=True)
    except IntegrityError:
        return False  # another worker has made it
    logger.info("schedule %r: first tick at %s", row.name, row.next_at or "no time")
    return True
