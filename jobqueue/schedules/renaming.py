"""Schedules that were renamed with their tasks: the row goes on under the new name, so that no tick fires twice.

A schedule without a name of its own has the path of its task. When that gets another path and names the old one in
aliases=, workers of both versions announce a schedule each during the deploy. They are one schedule: the name that was
first seen last counts, as the versions of one name do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from django.db import IntegrityError, connections

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.models import Schedule, ScheduleVersion
from jobqueue.schedules.adopting import adopt_locked, locked, taking_names
from jobqueue.schedules.deciding import Said
from jobqueue.schedules.definitions import FORMERLY

logger = logging.getLogger("jobqueue.worker")

#: name of a schedule whose row does not exist -> the name that its row has now
Moves: TypeAlias = dict[str, str]


class Live(NamedTuple):
    """The version of a name that is to be in force."""

    name: str
    pk: int
    digest: str
    seen_at: datetime


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
        text = "the schedule %r goes on as %r: its task was renamed"
        said.append(partial(logger.info, text, earlier, one.name))
        return 1
