"""Due times that plain SQL has written in the zone of its session: NOW() where UTC_TIMESTAMP(6) was due."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from django.db import Error, connections
from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.exceptions import NotSupported
from jobqueue.explain.explanation import Explanation, span
from jobqueue.explain.reading import ReadJob
from jobqueue.ordering import SCHEDULED

#: a due time that is so close to the offset of the zone is told
CLOSE = timedelta(seconds=5)


def zone_offset(using: str) -> timedelta:
    """How far NOW() of a session is ahead of UTC; 0 where instants have a zone. One statement on MySQL and MariaDB."""
    try:
        return timedelta(seconds=vendor(using).set_up.zone_seconds(connections[using]) or 0.0)
    except (Error, NotSupported):
        return timedelta(0)


def is_in_zone(run_at: datetime, created_at: datetime, now: datetime, offset: timedelta) -> bool:
    """Whether `run_at` of a job that has never run may be NOW() of its enqueue, in a zone that is ahead of UTC."""
    if offset <= CLOSE:
        return False
    # The statement may have written NOW() into both.
    created = created_at - offset if created_at > now + CLOSE else created_at
    return abs(run_at - created - offset) <= CLOSE


def note_zone(found: list[Explanation], job: ReadJob, using: str) -> list[Explanation]:
    """`found`, in which not_due says so if the zone of sessions may be the reason. A statement if it is not_due."""
    if job.attempts or job.wait_reason not in (None, SCHEDULED) or not any(one.code == "not_due" for one in found):
        return found
    offset = zone_offset(using)
    if not is_in_zone(job.run_at, job.created_at, job.now, offset):
        return found
    return [_noted(one, job, offset) if one.code == "not_due" else one for one in found]


def _noted(one: Explanation, job: ReadJob, offset: timedelta) -> Explanation:
    facts = {"text": one.text, "zone": span(offset.total_seconds()), "id": job.pk}
    text = gettext(
        "%(text)s That is as long after its enqueue as NOW() of a session is ahead of UTC (%(zone)s): plain SQL may "
        "have written NOW() into run_at, which is UTC."
    )
    step = gettext(
        "If it should have been due at once, let it run now (jobs retry %(id)d), and write UTC_TIMESTAMP(6) in that "
        "SQL."
    )
    evidence = one.evidence | {"zone_seconds": offset.total_seconds()}
    return replace(one, text=text % facts, evidence=evidence, next_step=step % facts)
