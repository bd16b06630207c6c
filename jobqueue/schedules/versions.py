"""Which definition of a schedule is in force, while workers of several versions of the code run.

Each worker announces what its code and settings declare. Of the versions that live workers have, the one that was
first seen last is in force. So the new one wins at the start of a rolling deploy and stays, and the old one is in force
again soon after the last worker that has the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import IntegrityError, connections, transaction
from django.db.models import Max, QuerySet

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.retry import OF_THE_DATABASE, retry_transient
from jobqueue.models import Schedule, ScheduleVersion
from jobqueue.schedules.adopting import Live, adopt, insert, renames, set_back, take_over
from jobqueue.schedules.deciding import Said, write_and_tell
from jobqueue.schedules.declaring import Declared, declared
from jobqueue.schedules.definitions import FORMERLY, define, digest_of, to_json

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
#: rows of one transaction
_CHUNK = 500


class _Document(NamedTuple):
    name: str
    digest: str
    source: str
    definition: dict[str, JSON]


def announce(using: str) -> list[int]:
    """Announce what this process declares for a database, and put it in force; the ids of its versions.

    A schedule whose definition cannot be made, as when a key function fails, is left out and logged.
    """
    documents = []
    for one in list(declared().values()):
        try:
            if getattr(one.task.get_backend(), "database", None) != using:
                continue
            document = document_of(one)
        except Exception:
            logger.exception("the schedule %r is left out, because its jobs cannot be made", one.name)
            continue
        documents.append(_Document(one.name, digest_of(document), one.source, document))
    ids: list[int] = []
    newest = ScheduleVersion.objects.using(using).aggregate(found=Max("announced_at"))["found"] if documents else None
    for at in range(0, len(documents), _CHUNK):
        some = documents[at : at + _CHUNK]
        ids += retry_transient("schedule", partial(_announce, some, newest, using), using=using)
    if ids:
        _refresh(ids, using)
        settle(using)
    return ids


def document_of(one: Declared) -> dict[str, JSON]:
    """The definition of a declared schedule. Its functions of the arguments are called here."""
    terms = one.terms
    values = {name: getattr(terms, name) for name in ("missed", "missed_limit", "overlap", "jitter_seconds")}
    document = to_json(define(one.task, one.args, one.kwargs, terms.timing, values))
    # Only a schedule that has the name of its task is renamed with it.
    aliases = getattr(one.task, "aliases", ()) if one.name == one.task.module_path else ()
    return document | ({FORMERLY: sorted(aliases)} if aliases else {})


def _announce(documents: Sequence[_Document], newest: datetime | None, using: str) -> list[int]:
    with transaction.atomic(using=using):
        known = _known(documents, using)
        if newest is not None:
            # Others were announced while it was not: workers have it again, as after a deploy was taken back.
            own = ScheduleVersion.objects.using(using).filter(pk__in=known.values())
            back = own.filter(announced_at__lt=newest - timedelta(seconds=LAPSE_SECONDS))
            back.update(seen_at=UtcNow(), announced_at=UtcNow())
        new = [
            ScheduleVersion(name=one.name, digest=one.digest, source=one.source, definition=one.definition)
            for one in documents
            if (one.name, one.digest) not in known
        ]
        if new:
            try:
                _insert(new, using)
            except IntegrityError:  # another worker has announced one of them just now
                for row in new:
                    try:
                        _insert([row], using)
                    except IntegrityError:
                        continue
            known = _known(documents, using)
        return [known[one.name, one.digest] for one in documents]


def _insert(rows: Sequence[ScheduleVersion], using: str) -> None:
    with transaction.atomic(using=using):
        ScheduleVersion.objects.using(using).bulk_create(rows)


def _known(documents: Sequence[_Document], using: str) -> dict[tuple[str, str], int]:
    """The versions that are there already."""
    rows = ScheduleVersion.objects.using(using).filter(name__in=[one.name for one in documents])
    wanted = {(one.name, one.digest) for one in documents}
    found = {(name, digest): pk for name, digest, pk in rows.values_list("name", "digest", "pk")}
    return {key: pk for key, pk in found.items() if key in wanted}


def keep_announced(ids: Sequence[int], using: str) -> bool:
    """Note that live workers have these versions, unless another one has just done so; False if some are gone.

    The worker has announced them before. If that was longer ago than a version lasts, nobody could announce anything
    meanwhile, so the other versions of then go on, too: else the first worker that came back would decide alone.
    """
    rows = ScheduleVersion.objects.using(using).filter(pk__in=ids)
    all_there = rows.count() == len({*ids})
    lapsed = rows.filter(announced_at__lt=UtcNowPlus(-LAPSE_SECONDS)).aggregate(found=Max("announced_at"))["found"]
    if lapsed is not None:
        since = lapsed - timedelta(seconds=LAPSE_SECONDS)
        others = ScheduleVersion.objects.using(using).filter(announced_at__gte=since)
        ids = [*{*ids, *others.values_list("pk", flat=True)}]
    _refresh(ids, using)
    return all_there


def _refresh(ids: Sequence[int], using: str) -> None:
    stale = UtcNowPlus(-_FRESH_SECONDS)
    versions = ScheduleVersion.objects.using(using).filter(pk__in=ids)
    names = {*versions.values_list("name", flat=True)}
    own = Schedule.objects.using(using).filter(name__in=names).exclude(source=Schedule.Source.ADMIN)
    for rows in (versions, own):
        numbers = list(rows.filter(announced_at__lt=stale).values_list("pk", flat=True))
        for at in range(0, len(numbers), _CHUNK):
            some = rows.model._default_manager.using(using).filter(pk__in=numbers[at : at + _CHUNK])
            retry_transient("schedule", partial(_touch, some, using), using=using)


def _touch(rows: QuerySet[Any], using: str) -> None:
    """Note the time; not in rows that a transaction of somebody else has locked, which it may do for long."""
    with vendor(using).transaction(connections[using]):
        free = list(vendor(using).lock_rows(rows).values_list("pk", flat=True))
        rows.filter(pk__in=free).update(announced_at=UtcNow())


def settle(using: str, failing: set[str] | None = None) -> int:
    """Put the versions in force that have to be; how many schedules have changed.

    One that cannot be put in force is logged and left out; the next call tries again. `failing`: the names of those
    that the last call has left out, which are not logged again.
    """
    failing = set() if failing is None else failing
    live = ScheduleVersion.objects.using(using).filter(announced_at__gte=UtcNowPlus(-LAPSE_SECONDS))
    columns = ("name", "pk", "digest", "seen_at")
    newest = {row[0]: Live(*row) for row in live.order_by("seen_at", "pk").values_list(*columns)}
    rows = Schedule.objects.using(using).values_list("name", "announced_digest", "retired_at")
    found = {name: (digest, retired) for name, digest, retired in rows}
    changed = [one for name, one in newest.items() if found.get(name) != (one.digest, None)]
    moves, superseded = renames(newest, found, using) if changed else ({}, set[str]())
    changes, new = 0, []
    for one in changed:
        if one.name in superseded:
            continue
        if one.name in moves:
            changes += _attempt(one.name, partial(take_over, one, moves[one.name], using), failing, using)
        elif one.name in found:
            changes += _attempt(one.name, partial(adopt, one.pk, using), failing, using)
        else:
            new.append(one)
    for at in range(0, len(new), _CHUNK):
        changes += _begin(new[at : at + _CHUNK], failing, using)
    return changes + _follow_clock(failing, using)


def _begin(new: Sequence[Live], failing: set[str], using: str) -> int:
    """Put versions in force whose schedules do not exist, together if that works."""
    try:
        return write_and_tell(partial(insert, [one.pk for one in new], using), using)
    except OF_THE_DATABASE:
        raise
    except Exception:
        return sum(_attempt(one.name, partial(insert, [one.pk], using), failing, using) for one in new)


def _attempt(name: str, work: Callable[[Said], int], failing: set[str], using: str) -> int:
    """What `work` of one schedule returns; 0 if it raised, which is logged: others go on."""
    try:
        done = write_and_tell(work, using)
    except OF_THE_DATABASE:
        raise
    except Exception as error:
        if name not in failing:
            text = f"{type(error).__name__}: {error}"
            logger.warning(
                "what workers announce of the schedule %r is not put in force by this worker: %s. Other schedules go "
                "on; it is tried again every %d s.", name, text, ANNOUNCE_SECONDS,
            )  # fmt: skip
        failing.add(name)
        return 0
    failing.discard(name)
    return done


def _follow_clock(failing: set[str], using: str) -> int:
    """Let schedules go on after the clock of the server was set back: those that are decided up to a later time.

    A tick that was fired has a row, so it does not fire again when its time comes a second time. Also those that have
    come to their end by the wrong clock.
    """
    ahead = Schedule.objects.using(using).filter(decided_until__gt=UtcNowPlus(CLOCK_SECONDS))
    names = list(ahead.filter(enabled=True, retired_at__isnull=True).values_list("name", flat=True))
    return sum(_attempt(name, partial(set_back, name, using), failing, using) for name in names)


def retire(using: str) -> list[str]:
    """Retire the schedules of code and settings that no worker announces any more; their names."""
    rows = (
        Schedule.objects.using(using)
        .filter(retired_at__isnull=True, announced_at__lt=UtcNowPlus(-RETIRE_SECONDS))
        .exclude(source=Schedule.Source.ADMIN)
    )
    retired = []
    for number, name in list(rows.values_list("pk", "name")):
        if retry_transient("schedule", partial(_retire, rows.filter(pk=number), using), using=using):
            logger.warning(
                "the schedule %r is retired: no worker has announced it for %d s, so it is in neither code nor "
                "settings any more", name, RETIRE_SECONDS,
            )  # fmt: skip
            retired.append(name)
    return retired


def _retire(rows: QuerySet[Schedule], using: str) -> int:
    with vendor(using).transaction(connections[using]):
        # A row that somebody has locked is retired in a later round.
        if not vendor(using).lock_rows(rows).values_list("pk", flat=True):
            return 0
        return rows.update(retired_at=UtcNow(), next_at=None, look_at=None, updated_at=UtcNow())
