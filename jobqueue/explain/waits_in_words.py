"""connection, outside_service and hanging in words."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections
from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list, span
from jobqueue.explain.reports import Report
from jobqueue.explain.wait_groups import Group
from jobqueue.payload import JSON

#: innermost lines of a stack, and names of workers, in the evidence
LINES_SHOWN, WORKERS_SHOWN = 15, 5


def outside_service(group: Group) -> Explanation:
    """Jobs wait for an answer from outside."""
    assert group.wait is not None
    text = gettext(
        "Jobs wait for an answer from outside: %(n)d (%(jobs)s), in %(name)s, called at %(place)s. The longest has run "
        "for %(time)s."
    )
    step = gettext(
        "Check whether that service answers. Give its calls a time limit, and declare it as the dependency of the "
        "task, so that a circuit breaker holds its jobs back."
    )
    evidence = _evidence(group) | {"service": group.wait.name}
    return Explanation("outside_service", text % _facts(group), evidence, step)


def own_lock(group: Group) -> Explanation:
    """Jobs wait for a lock of this package."""
    text = gettext(
        "Jobs wait for a lock of jobqueue.locks: %(n)d (%(jobs)s), at %(place)s. The longest has run for %(time)s."
    )
    step = gettext("Find its holder (jobs locks), and let that one end. More workers would wait, too.")
    return Explanation("row_lock", text % _facts(group), _evidence(group) | {"kind": "lock", "locked": ""}, step)


def connection(group: Group) -> Explanation:
    """Threads wait for a connection to a database."""
    assert group.wait is not None
    if group.wait.kind == "pool":
        text = gettext(
            "Threads wait until a connection of the pool %(name)s is free: %(threads)d. Jobs among them: %(n)d "
            "(%(jobs)s), at %(place)s."
        )
        step = gettext("Make the pool as large as the number of threads of a process, or run fewer threads.")
    else:
        text = gettext(
            "Threads wait until the database %(name)s accepts a connection: %(threads)d. Jobs among them: %(n)d "
            "(%(jobs)s), at %(place)s."
        )
        step = gettext("Check whether that server runs and can be reached from the hosts of the workers.")
    evidence = _evidence(group) | {"kind": group.wait.kind, "database": group.wait.name, "threads": group.threads}
    return Explanation("connection", text % _facts(group), evidence, step)


def unreachable(reports: Sequence[Report], using: str) -> list[Explanation]:
    """connection of workers whose own threads get none. One statement or two."""
    names = sorted(report.worker for report in reports)
    codes = sorted({code for report in reports for code in report.unreachable.values()})
    evidence: dict[str, JSON] = {"kind": "refused", "database": using, "workers": list(names[:WORKERS_SHOWN])}
    evidence |= {"errors": list(codes), "work": sorted({work for report in reports for work in report.unreachable})}
    use = vendor(using).set_up.session_use(connections[using])
    evidence |= {"limit": use.limit if use else None, "used": use.used if use else None}
    text = gettext(
        "Workers get no connection to the database (error %(codes)s): %(n)d. They claim no jobs, or cannot write how "
        "jobs have ended."
    )
    step = gettext(
        "Check whether the server has connections left for their account and can be reached from their hosts; their "
        "logs have the error. Run fewer threads, raise the limit, or use a pooler."
    )
    facts = {"codes": ", ".join(codes), "n": len(names)}
    return [Explanation("connection", text % facts, evidence, step)]


def full(using: str) -> list[Explanation]:
    """connection, if the server has none left for others. One statement or two."""
    use = vendor(using).set_up.session_use(connections[using])
    if use is None or use.used < use.limit:
        return []
    text = gettext("All connections that the server allows are in use: %(used)d of %(limit)d. New ones are refused.")
    step = gettext("Find out who holds them. Run fewer threads, lower CONN_MAX_AGE, or raise the limit.")
    evidence: dict[str, JSON] = {"kind": "full", "database": using, "limit": use.limit, "used": use.used}
    return [Explanation("connection", text % {"used": use.used, "limit": use.limit}, evidence, step)]


def hanging(group: Group) -> Explanation:
    """Jobs have run for far longer than usual and do not move."""
    if group.standing is None:
        text = gettext(
            "Jobs hang: %(n)d (%(jobs)s). Their process executes no Python code, so one of its jobs waits or computes "
            "inside a library that lets no other thread run. The longest has run for %(time)s (mean: %(usual)s)."
        )
        step = gettext(
            "Look at the process with a tool that needs no answer from it, such as py-spy or gdb. A "
            "hard_timeout_seconds of the task ends such runs."
        )
    else:
        text = gettext(
            "Jobs hang: %(n)d (%(jobs)s), at %(place)s. The longest has run for %(time)s (mean: %(usual)s), and the "
            "stack was the same at each look."
        )
        step = gettext(
            "Find out what that line waits for. A hard_timeout_seconds of the task ends such runs; cancel ends one "
            "that looks at should_stop."
        )
    usual = "-" if group.usual_seconds is None else span(group.usual_seconds)
    evidence = _evidence(group) | {"usual_seconds": group.usual_seconds, "answered": group.standing is not None}
    return Explanation("hanging", text % (_facts(group) | {"usual": usual}), evidence, step)


def _facts(group: Group) -> dict[str, object]:
    ids = sorted(runner.id for runner in group.runners)
    facts: dict[str, object] = {"n": len(ids), "jobs": id_list(ids), "place": group.place, "time": span(group.seconds)}
    return facts | {"threads": group.threads, "name": group.wait.name if group.wait else ""}


def _evidence(group: Group) -> dict[str, JSON]:
    ids, standing = sorted(runner.id for runner in group.runners), group.standing
    return {
        "jobs": list(ids[:JOBS_SHOWN]),
        "workers": list(sorted(group.workers)[:WORKERS_SHOWN]),
        "place": group.place,
        "seconds": group.seconds,
        "unchanged_seconds": standing.unchanged_seconds if standing else None,
        "looks": standing.looks if standing else None,
        "told_seconds_ago": round(group.age_seconds, 3),
        "stack": [line.text for line in standing.stack[-LINES_SHOWN:]] if standing else [],
    }
