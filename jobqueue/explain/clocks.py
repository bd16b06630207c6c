"""clock_skew: the clock of a worker's host is not that of the database."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext

from jobqueue.db.clock import SKEW_SECONDS
from jobqueue.explain.explanation import Explanation, span
from jobqueue.explain.workers import RunningWorker
from jobqueue.payload import JSON

#: workers that the evidence names, those with the largest differences
SHOWN = 10


def clock_skew(workers: Sequence[RunningWorker]) -> list[Explanation]:
    """clock_skew, if the clock of one of their hosts was wrong at its last heartbeat. No statement.

    Leases and due times go by the database's clock, so a wrong clock is never the first reason.
    """
    wrong = [(worker.clock_ahead_seconds or 0.0, worker) for worker in workers]
    wrong = [(ahead, worker) for ahead, worker in wrong if abs(ahead) > SKEW_SECONDS]
    if not wrong:
        return []
    wrong.sort(key=lambda one: (-abs(one[0]), one[1].name))
    hosts = dict.fromkeys(worker.host for _, worker in wrong)
    ahead, worst = wrong[0]
    if ahead > 0:
        text = gettext("The clock of host %(host)s is %(time)s ahead of that of the database. Hosts like it: %(n)d.")
    else:
        text = gettext("The clock of host %(host)s is %(time)s behind that of the database. Hosts like it: %(n)d.")
    step = gettext(
        "Run NTP on that host. Leases and due times go by the clock of the database; but a time that a job computes on "
        "that host, such as the run_at of a new job, is wrong by so much, and so are times in its logs."
    )
    evidence: dict[str, JSON] = {
        "host": worst.host,
        "host_ahead_seconds": ahead,
        "limit_seconds": SKEW_SECONDS,
        "workers": [
            {"name": worker.name, "host": worker.host, "ahead_seconds": seconds} for seconds, worker in wrong[:SHOWN]
        ],
    }
    facts = {"host": worst.host, "time": span(ahead), "n": len(hosts)}
    return [Explanation("clock_skew", text % facts, evidence, step)]
