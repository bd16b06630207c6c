"""connection, outside_service, row_lock and hanging: what the threads of workers wait for, as they have told it.

Only for workers that were asked a moment ago: the functions of this room write nothing, so they do not ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Sum
from django.utils.translation import gettext

from jobqueue.base.payload import JSON
from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.explain.explanation import JOBS_SHOWN, Explanation, id_list, span
from jobqueue.maintenance.worker_rows import stacks_of
from jobqueue.models import Job
from jobqueue.stats.history import total_rows

#: older answers are not used
RECENT_SECONDS = 15.0
#: workers whose answers are read
ANSWERS_MAX = 20


class Line(NamedTuple):
    """A frame: `package/module.py`, the text of the whole line, and the name of the function."""

    file: str
    text: str
    function: str

    @classmethod
    def of(cls, text: str) -> Line:
        """From `package/module.py:12 function`."""
        where, _, function = text.rpartition(" ")
        return cls(where.rpartition(":")[0], text, function)


@dataclass(frozen=True, slots=True)
class Standing:
    """Threads of a worker, or coroutines, with the same stack. `jobs`: fences by id; without one they run no job.

    `stack` has the innermost frame last. It was the same at `looks` looks, for `unchanged_seconds`.
    """

    worker: str
    jobs: dict[int, int]
    threads: int
    stack: list[Line]
    database: str | None
    looks: int
    unchanged_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of one worker. `answered` is false if it executed no Python code for a while.

    `unreachable`: its work that waits for a connection to the database, with codes of the errors.
    """

    worker: str
    age_seconds: float
    answered: bool
    standing: list[Standing]
    unreachable: dict[str, str]


def reports(names: Sequence[str], using: str) -> list[Report]:
    """The recent answers of some of these workers. One statement."""
    found = stacks_of(names[:ANSWERS_MAX], RECENT_SECONDS, using=using) if names else []
    return [report_of(one.worker, one.age_seconds, one.content) for one in found if isinstance(one.content, dict)]


def report_of(worker: str, age_seconds: float, content: dict[str, Any]) -> Report:
    """An answer as it is stored; what cannot be read of it is left out."""
    # A worker of another release may have written it.
    places, unreachable = content.get("places"), content.get("unreachable")
    standing = list(_standing(worker, places)) if isinstance(places, list) else []
    errors = {str(key): str(code) for key, code in unreachable.items()} if isinstance(unreachable, dict) else {}
    return Report(worker, age_seconds, bool(content.get("answered")), standing, errors)


def _standing(worker: str, places: list[Any]) -> Iterator[Standing]:
    for one in places:
        try:
            jobs = {int(job_id): int(fence) for job_id, fence in one["jobs"]}
            stack = [Line.of(str(line)) for line in one["stack"]]
            database = None if one["database"] is None else str(one["database"])
            looks, unchanged = int(one["looks"]), float(one["unchanged_seconds"])
            yield Standing(worker, jobs, int(one["threads"]), stack, database, looks, unchanged)
        except (KeyError, TypeError, ValueError):
            continue


#: a job that has run for less is not said to wait for a service
SERVICE_SECONDS = 2.0
#: one that hangs has run for so long, and for so many times the mean of its task; without any statistics, for longer
HANG_SECONDS, HANG_TIMES, HANG_UNKNOWN_SECONDS = 60.0, 10.0, 600.0
#: jobs whose rows are read
JOBS_MAX = 200
#: innermost lines of a stack, and names of workers, in the evidence
LINES_SHOWN, WORKERS_SHOWN = 15, 5
#: modules that wait on behalf of the code that calls them
_WAITERS = {"threading.py", "queue.py", "selectors.py"}
_WAITING_PACKAGES = ("concurrent/futures/", "asyncio/")
#: functions of asyncio that talk to other services
_STREAMS = {"asyncio/streams.py", "asyncio/selector_events.py", "asyncio/sslproto.py"}
_SERVICE_FILES = {
    "socket.py", "ssl.py", "ftplib.py", "imaplib.py", "nntplib.py", "poplib.py", "smtplib.py", "telnetlib.py",
    "socketserver.py", *_STREAMS,
}  # fmt: skip
_SERVICE_PACKAGES = {
    "http", "urllib", "urllib3", "requests", "requests_toolbelt", "httpx", "httpcore", "h11", "h2", "aiohttp", "anyio",
    "websockets", "websocket", "grpc", "botocore", "boto3", "s3transfer", "google", "azure", "stripe", "twilio",
    "paramiko", "ldap3", "redis", "valkey", "pymemcache", "pymongo", "motor", "elasticsearch", "elastic_transport",
    "opensearchpy", "kombu", "amqp", "pika", "kafka", "confluent_kafka", "xmlrpc", "zeep", "suds", "geventhttpclient",
}  # fmt: skip
_DRIVERS = {
    "MySQLdb", "pymysql", "mysql", "mariadb", "psycopg", "psycopg_binary", "psycopg2", "asyncpg", "aiomysql",
    "oracledb", "cx_Oracle", "pyodbc", "clickhouse_driver", "clickhouse_connect", "cassandra",
    "snowflake", "pg8000", "pymssql",
}  # fmt: skip
_DJANGO = "django/db/"
_OWN, _OWN_LOCKS = "jobqueue/", "jobqueue/locks/"


def waits_of_workers(names: Sequence[str], using: str, *, job_id: int | None = None) -> list[Explanation]:
    """What the threads of these workers wait for, those of most jobs first; with `job_id`, of that job alone.

    One statement; three or four if one of the workers was asked a moment ago, and one more for each without an answer.
    """
    told = reports(sorted(names), using)
    if not told:
        return []
    runners = _runners(told, using, job_id)
    groups: dict[object, Group] = {}
    for report in told:
        for standing in report.standing:
            own = [runners[one] for one in standing.jobs.items() if one in runners]
            if own or (not standing.jobs and job_id is None):
                _note_wait(groups, report, standing, own, using)
    found = [_explained(group) for group in _by_size(groups)]
    cannot = [report for report in told if report.unreachable]
    return (unreachable(cannot, using) if cannot else []) + found + _hanging(told, runners, using)


def _note_wait(groups: dict[object, Group], report: Report, standing: Standing, own: list[Runner], using: str) -> None:
    wait = wait_of(standing, using) if standing.looks > 1 else None
    if wait is None:
        return
    if wait.kind in ("service", "lock"):
        own = [runner for runner in own if runner.seconds >= SERVICE_SECONDS]
        if not own:
            return
    # All waits for one database are one group, also those of threads that hold no job.
    key = (wait.kind, wait.name, wait.place) if wait.kind in ("service", "lock") else (wait.kind, wait.name)
    group = groups.setdefault(key, Group(standing, wait.place, wait, age_seconds=report.age_seconds))
    if own and not group.runners:
        group.standing, group.place = standing, wait.place
    group.runners += own
    group.threads += standing.threads
    group.workers.add(report.worker)


def _hanging(told: Sequence[Report], runners: dict[tuple[int, int], Runner], using: str) -> list[Explanation]:
    """The jobs that have run for far longer than usual, if nothing tells what they wait for."""
    standing_of = {
        one: (report, standing)
        for report in told
        for standing in report.standing
        if standing.looks > 1 and wait_of(standing, using) is None
        for one in standing.jobs.items()
    }
    silent = {report.worker: report for report in told if not report.answered}
    late = [
        runner
        for key, runner in runners.items()
        if runner.seconds >= HANG_SECONDS and (key in standing_of or runner.worker in silent)
    ]
    usual = _usual({runner.kind for runner in late}, using)
    groups: dict[object, Group] = {}
    for runner in late:
        mean = usual.get(runner.kind)
        if runner.seconds < (HANG_UNKNOWN_SECONDS if mean is None else HANG_TIMES * mean):
            continue
        report, standing = standing_of.get((runner.id, runner.fence), (None, None))
        report = report or silent[runner.worker or ""]
        place = calling_line(standing.stack) if standing is not None else ""
        group = groups.setdefault(
            (place, runner.kind), Group(standing, place, usual_seconds=mean, age_seconds=report.age_seconds)
        )
        group.runners.append(runner)
        group.workers.add(report.worker)
    return [hanging(group) for group in _by_size(groups)]


def _explained(group: Group) -> Explanation:
    kind = "" if group.wait is None else group.wait.kind
    return outside_service(group) if kind == "service" else own_lock(group) if kind == "lock" else connection(group)


def may_wait_for_row(worker: str, job_id: int, using: str) -> bool | None:
    """Whether the thread of this job is in a statement on the database; None: it has not told. One statement."""
    found = [one for report in reports([worker], using) for one in report.standing if job_id in one.jobs]
    return any(runs_statement(one, using) for one in found) if found else None


def _by_size(groups: dict[object, Group]) -> list[Group]:
    return sorted(groups.values(), key=lambda group: (-len(group.runners), -group.threads, group.place))


def _runners(told: Sequence[Report], using: str, job_id: int | None) -> dict[tuple[int, int], Runner]:
    """The rows of the jobs that workers have told, by id and fence: those that still run.

    One statement, and one for each worker that did not answer.
    """
    ids = {one for report in told for standing in report.standing for one in standing.jobs}
    wanted = Job.objects.using(using).filter(status=Job.Status.PROCESSING)
    silent = [report.worker for report in told if not report.answered]
    rows = [wanted.filter(pk__in=sorted(ids if job_id is None else {job_id})[:JOBS_MAX])]
    if job_id is None:
        # By equality: for a list of names MySQL may read the whole index.
        rows += [wanted.filter(locked_by=name) for name in silent]
    columns = ("pk", "fence", "locked_by", "queue", "task", Selected("locked_at"), Selected(UtcNow()))
    return {
        (runner.id, runner.fence): runner
        for found in rows
        for row in found.order_by().values_list(*columns)[:JOBS_MAX]
        for runner in _runner(*row)
    }


def _runner(
    number: int, fence: int, worker: str | None, queue: str, task: str | None, since: datetime | None, now: datetime
) -> Iterator[Runner]:
    # Plain SQL may have written a lease without a beginning.
    if since is not None:
        yield Runner(number, fence, worker, (queue, task or ""), (now - since).total_seconds())


def _usual(kinds: set[tuple[str, str]], using: str) -> dict[tuple[str, str], float]:
    """How long jobs of these queues and tasks run on average, in seconds, where some were counted."""
    if not kinds:
        return {}
    queues, tasks = {queue for queue, _ in kinds}, {task for _, task in kinds}
    rows = total_rows(using).filter(queue__in=queues, task__in=tasks, runs__gt=0)
    sums = rows.values("queue", "task").annotate(ran=Sum("runs"), took=Sum("run_us"))
    found = sums.order_by().values_list("queue", "task", "ran", "took")
    return {(queue, task): int(took) / int(ran) / 1e6 for queue, task, ran, took in found}


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
    use = vendor(using).session_use(connections[using])
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


@dataclass(frozen=True, slots=True)
class Runner:
    """A job that runs, as its row says."""

    id: int
    fence: int
    worker: str | None
    kind: tuple[str, str]  # queue and task
    seconds: float


@dataclass(slots=True)
class Group:
    """Threads that wait for the same thing, or hang at the same line."""

    standing: Standing | None  # None: the process did not answer
    place: str
    wait: Wait | None = None
    runners: list[Runner] = field(default_factory=list)
    threads: int = 0
    workers: set[str] = field(default_factory=set)
    usual_seconds: float | None = None
    age_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds for which the longest of the jobs has run."""
        return max((runner.seconds for runner in self.runners), default=0.0)


class Wait(NamedTuple):
    """What a thread waits for. `kind`: "pool" or "connect", which are about connections, "lock", or "service".

    `name` is the library that waits, or the alias of a database; `place` the line that has called it.
    """

    kind: str
    name: str
    place: str


def wait_of(standing: Standing, using: str) -> Wait | None:
    """What the threads wait for; None: for nothing that can be told from their stack.

    A statement on the database `using` itself is none: others tell what it waits for there.
    """
    stack = standing.stack
    place = calling_line(stack)
    for line in reversed(stack):
        if line.file == "psycopg_pool/pool.py" and line.function == "getconn":
            return Wait("pool", standing.database or "psycopg_pool", place)
        if line.file.startswith("sqlalchemy/pool/") and line.function == "_do_get":
            return Wait("pool", "sqlalchemy", place)
        if line.file == "django/db/backends/base/base.py" and line.function == "connect":
            return Wait("connect", standing.database or "django", place)
    if _in_own_lock(stack):
        return Wait("lock", "jobqueue.locks", place)
    inner = next((line for line in reversed(stack) if not _only_waits(line)), None)
    if inner is None or not (_is_service(inner) or _is_database(inner)):
        return None
    if standing.database is not None:
        return None if standing.database == using else Wait("service", f"database {standing.database}", place)
    if inner.file.startswith(_DJANGO):
        return None
    return Wait("service", _library(stack), place)


def runs_statement(standing: Standing, using: str) -> bool:
    """Whether the threads are in a statement on the database `using`."""
    inner = next((line for line in reversed(standing.stack) if not _only_waits(line)), None)
    return standing.database == using and inner is not None and _is_database(inner)


def _in_own_lock(stack: Sequence[Line]) -> bool:
    """Whether the innermost code that is no library's takes a lock of this package."""
    for line in reversed(stack):
        if line.file.startswith(_OWN_LOCKS):
            return True
        if not (_only_waits(line) or _is_database(line) or _is_service(line) or line.file.startswith(_OWN)):
            return False
    return False


def calling_line(stack: Sequence[Line]) -> str:
    """The innermost line outside of libraries that only wait, talk to services or to databases."""
    for line in reversed(stack):
        if not (_only_waits(line) or _is_service(line) or _is_database(line) or _is_pool(line) or _is_lock(line)):
            return line.text
    return stack[-1].text if stack else "-"


def _library(stack: Sequence[Line]) -> str:
    """The outermost of the libraries at the inner end of the stack: the one that the project called."""
    name = "socket"
    for line in reversed(stack):
        if _is_service(line) or _is_database(line):
            name = _package(line).removesuffix(".py")
        elif not _only_waits(line):
            break
    return name


def _package(line: Line) -> str:
    return line.file.partition("/")[0]


def _only_waits(line: Line) -> bool:
    return line.file in _WAITERS or (line.file.startswith(_WAITING_PACKAGES) and line.file not in _STREAMS)


def _is_service(line: Line) -> bool:
    return line.file in _SERVICE_FILES or ("/" in line.file and _package(line) in _SERVICE_PACKAGES)


def _is_database(line: Line) -> bool:
    return _package(line) in _DRIVERS or line.file.startswith(_DJANGO)


def _is_lock(line: Line) -> bool:
    return line.file.startswith((_OWN_LOCKS, "jobqueue/db/")) or line.file == "contextlib.py"


def _is_pool(line: Line) -> bool:
    return _package(line) in ("psycopg_pool", "sqlalchemy")
