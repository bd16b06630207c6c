"""Reads what the metrics show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobqueue.db.alias import explain_missing_table
from jobqueue.db.time_limit import time_limit
from jobqueue.lockstats.report import RedoneTransactions, ServerCounts, read_redone, read_server_counts
from jobqueue.stats import QueueStats, snapshot
from jobqueue.stats.counts import Counts, Kind
from jobqueue.stats.totals import read_totals

#: how long the reads may take beside those of snapshot()
READ_SECONDS = 5.0
#: how far back redone transactions are counted
REDONE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one moment."""

    queues: Sequence[QueueStats]
    totals: Mapping[Kind, Counts] | None  # None: there are too many to read
    redone: Sequence[RedoneTransactions]
    server: ServerCounts


def read_figures(*, using: str) -> Figures:
    """The figures now, by reads whose cost does not grow with the table of jobs.

    Raises StatementTimeout after stats.queues.READ_SECONDS and READ_SECONDS more, and database errors.
    """
    queues = snapshot(using=using)
    with explain_missing_table(using), time_limit(READ_SECONDS, using=using) as limit:
        totals = read_totals(using)
        limit.check()
        redone = read_redone(seconds=REDONE_SECONDS, using=using)
        limit.check()
        server = read_server_counts(using=using)
        # The server may have stopped a read that reports errors in its answer instead of raising them.
        limit.check()
    return Figures(queues, totals, redone, server)
