"""Notes when the DONE jobs of tasks with a result_ttl_seconds are to be deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from django.db import Error, connections

from jobqueue.conf.known_tasks import having
from jobqueue.db import vendor
from jobqueue.db.callers_transaction import in_callers_transaction
from jobqueue.db.clock import UtcNowPlus
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import DatabaseBusy
from jobqueue.models import ResultExpiry
from jobqueue.transitions.leases import Lease

logger = logging.getLogger("jobqueue.transitions")

_OPTION = "result_ttl_seconds"


def note_expiries(done: Iterable[object]) -> None:
    """Write the expiries of jobs that were acked. No statement if none has one.

    After the commit of the ack, so that an ack stays one statement: a crash in between leaves a job to RETENTION. In a
    caller's transaction, together with the ack.
    """
    by_database: dict[str, dict[int, float]] = {}
    of_tasks = having(_OPTION)
    if not of_tasks:
        done = [job for job in done if isinstance(job, Lease) and job.options]
    for lease in done:
        if isinstance(lease, Lease) and (ttl := _ttl(lease, of_tasks)) is not None:
            by_database.setdefault(lease.using, {})[lease.job_id] = ttl
    for using, ttls in by_database.items():
        try:
            retry_transient("ack", partial(_write, ttls, using), using=using)
        except (Error, DatabaseBusy) as error:
            connection = connections[using]
            if in_callers_transaction(connection) and (connection.needs_rollback or not connection.is_usable()):
                # The ack is lost too.
                raise
            text = "%d jobs are DONE; their result_ttl_seconds could not be noted, so RETENTION decides: %s"
            logger.warning(text, len(ttls), error)


def _ttl(lease: Lease, of_tasks: Mapping[str, float]) -> float | None:
    """How long the job is kept: what using() gave it, else what its task says, if either does."""
    own = lease.options.get(_OPTION) if isinstance(lease.options, dict) else None
    if isinstance(own, (int, float)):
        return float(own)
    return None if lease.task is None else of_tasks.get(lease.task)


def _write(ttls: dict[int, float], using: str) -> None:
    rows = [ResultExpiry(job_id=job_id, ttl_seconds=ttl, expires_at=UtcNowPlus(ttl)) for job_id, ttl in ttls.items()]
    with vendor(using).transaction(connections[using]):
        ResultExpiry.objects.using(using).bulk_create(rows, batch_size=500, ignore_conflicts=True)
