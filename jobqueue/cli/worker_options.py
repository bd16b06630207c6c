"""The options of runworker: their declaration, and the Options made of them."""

from __future__ import annotations

import os
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, DjangoHelpFormatter

from jobqueue.base.validation import check_worker
from jobqueue.cli.arguments import (
    USAGE,
    add_log_format,
    count,
    database_of,
    duration,
    duration_or_zero,
    duration_range,
    env_defaults,
    size,
)
from jobqueue.conf import load
from jobqueue.exceptions import InvalidType, InvalidValue
from jobqueue.worker.shared.queue_choice import Selection, parse
from jobqueue.worker.shared.worker_options import MONITOR_CONNECTIONS, Options, default_name

EXAMPLES = """\
examples:
  python manage.py runworker                         serve all queues with 4 threads
  python manage.py runworker mail reports            serve these two queues only
  python manage.py runworker --queues mail:5,*       mail first, then all others
  python manage.py runworker --queues=-slow          all queues but slow
  python manage.py runworker --processes 4 --concurrency 8
  python manage.py runworker --drain                 run what is due, then exit: for cron and tests
  python manage.py runworker -v 2                    also tracebacks, claims, renewals and wake-ups

Durations: 500ms, 10s, 2m, 1h, 7d; a bare number means seconds. The environment can set each option too, as in
JOBQUEUE_WORKER_BATCH_SIZE=50 for --batch-size 50.

exit status: 0 stopped, drained or a limit reached; 1 unexpected error; 2 usage; 3 no database or tables;
4 wrong settings; 5 a run failed and --fail-on-error; 75 database unreachable for --db-retry; 128+N second signal N
"""


class HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of the examples, and gives most options one line."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **({"max_help_position": 28, "width": 110} | options))


def declare(parser: ArgumentParser) -> None:
    """Add all options, in groups, with defaults from the environment."""
    _declare_work(parser)
    _declare_ends(parser)
    _declare_upkeep(parser)
    # Django's own options, which all commands have, come last.
    parser._action_groups.append(parser._action_groups.pop(1))
    env_defaults(parser)
    parser.set_defaults(queues_of_env=parser.get_default("queues"))


def _declare_work(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("which jobs").add_argument
    add("queue", nargs="*", metavar="QUEUE", help="queues to serve, as with --queues; none = all")
    add("--queues", default=None, metavar="a,b:5,*", help="name[:weight], '*' = all; --queues=-mail = all but mail")
    add("--database", default=None, metavar="ALIAS", help="default: JOBQUEUE['DATABASE']")
    add("--dry-run", action="store_true", help="print the jobs that would be claimed, and exit")
    add = parser.add_argument_group("how many at once").add_argument
    add("--processes", type=count(256), default=1, metavar="N", help="child processes (default 1)")
    add("--concurrency", type=count(1000), default=4, metavar="N", help="job threads per process (default 4)")
    add("--async-concurrency", type=count(10_000), default=100, metavar="N", help="coroutine jobs per process (100)")
    add("--no-adaptive", action="store_true", help="keep the concurrency when the database is in trouble")
    add("--max-connections", type=count(10**6), default=None, metavar="N", help="do not start if more might be opened")


def _declare_ends(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("when to end (default: at a signal)").add_argument
    add("--once", action="store_true", help="run at most one job, then exit")
    add("--drain", action="store_true", help="exit when nothing is due")
    add("--max-jobs", type=count(10**9), default=None, metavar="N", help="exit after starting N jobs")
    add("--max-time", type=duration, default=None, metavar="1h", help="exit after this time")
    add("--idle-exit", type=duration, default=None, metavar="5m", help="exit after being idle for this time")
    add("--fail-on-error", action="store_true", help="exit 5 if a job failed")
    add = parser.add_argument_group("how to stop").add_argument
    add("--shutdown-timeout", type=duration_or_zero, default=30.0, metavar="30s", help="time to finish (default 30s)")
    add("--on-timeout", choices=["release", "wait"], default="release", help="then: kill and release jobs, or wait")
    add = parser.add_argument_group("when to replace child processes").add_argument
    add("--max-rss", type=size, default=None, metavar="512M", help="a child that uses more memory")
    add("--recycle-jobs", type=count(10**9), default=None, metavar="N", help="a child after N runs")
    add("--recycle-time", type=duration, default=None, metavar="1h", help="a child after this time")
    add("--reload", action="store_true", default=None, help="all of them when code changes (default: DEBUG, not in CI)")
    add("--no-reload", action="store_false", dest="reload", help="never for changed code")


def _declare_upkeep(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("claims and leases").add_argument
    add("--batch-size", type=count(1000), default=100, metavar="N", help="most jobs of one claim (default 100)")
    add("--poll", type=duration_range, default=(0.05, 0.2), metavar="50ms..200ms", help="idle wait, chosen at random")
    add("--lease", type=duration, default=None, metavar="60s", help="length (default: JOBQUEUE['LEASE_SECONDS'])")
    add("--heartbeat", type=duration, default=None, metavar="15s", help="time between renewals (default: lease / 4)")
    others = "leave expired leases, redrives and old rows to other workers and reap_leases"
    add("--no-reaper", action="store_true", help=others)
    add("--no-scheduler", action="store_true", help="fire no schedules; other workers do")
    add = parser.add_argument_group("operation").add_argument
    add("--worker-name", default=None, metavar="NAME", help="default host:pid; a boot id is always added")
    add_log_format(add, "text")
    add("--probe-port", type=count(65535), default=None, metavar="N", help="serve /live, /ready and /metrics over HTTP")
    add("--pidfile", default=None, metavar="FILE", help="write the supervisor's pid here")
    away = "exit 75 if the database stays unreachable for longer"
    add("--db-retry", type=duration, default=None, metavar="10m", help=away)


def build(given: dict[str, Any]) -> Options:
    """The Options of parsed arguments. Raises CommandError (exit status 2) for options that contradict each other."""
    lease, heartbeat = _lease(given)
    database = database_of(given)
    outbox = load().outbox
    once = given["once"]
    same = ["async_concurrency", "batch_size", "once", "drain", "max_jobs", "recycle_jobs", "on_timeout"]
    same += ["fail_on_error", "probe_port"]
    made = Options(
        selection=_selection(given),
        database=database,
        concurrency=1 if once else given["concurrency"],
        processes=1 if once else min(given["processes"], given["max_jobs"] or given["processes"]),
        name=_name(given),
        lease_seconds=lease,
        heartbeat_seconds=heartbeat,
        poll_low_seconds=given["poll"][0],
        poll_high_seconds=given["poll"][1],
        max_seconds=given["max_time"],
        max_rss_bytes=given["max_rss"],
        recycle_seconds=given["recycle_time"],
        idle_exit_seconds=given["idle_exit"],
        shutdown_seconds=given["shutdown_timeout"],
        reaper=not given["no_reaper"],
        scheduler=not given["no_scheduler"],
        adaptive=not given["no_adaptive"],
        db_retry_seconds=given["db_retry"],
        reload=_reload(given),
        relays=outbox is not None and outbox.in_workers,
        **{name: given[name] for name in same},
    )
    _check_connections(made, given["max_connections"])
    return made


def _check_connections(options: Options, most: int | None) -> None:
    needed = options.connections_max
    if most is None or needed <= most:
        return
    each = options.connections_per_child
    fitting = (most - MONITOR_CONNECTIONS) // options.processes - each
    fewer = max(1, (most - MONITOR_CONNECTIONS) // (each + 1))
    advice = f"--concurrency {fitting} fits" if fitting > 0 else f"--processes {fewer} at most"
    raise CommandError(
        f"--max-connections {most}: {options.processes} processes with {options.concurrency} job threads each, and the "
        f"monitor, may open {needed} connections. Nothing was started; lower --processes or --concurrency ({advice}).",
        returncode=USAGE,
    )


def _lease(given: dict[str, Any]) -> tuple[float, float]:
    conf = load()
    lease, heartbeat = given["lease"] or conf.lease_seconds, given["heartbeat"]
    if heartbeat is None:
        # HEARTBEAT_SECONDS belongs to LEASE_SECONDS; another lease gets a quarter of its own.
        heartbeat = conf.renew_seconds if given["lease"] is None else lease / 4
    if not lease > 3 * heartbeat:
        raise CommandError(
            f"--lease {lease:g}s must be longer than 3 x --heartbeat {heartbeat:g}s, or one late renewal loses it",
            returncode=USAGE,
        )
    return lease, heartbeat


def _selection(given: dict[str, Any]) -> Selection:
    queues, positional = given["queues"], given["queue"]
    if positional and queues is given["queues_of_env"]:
        # Queues on the command line override those of the environment.
        queues = None
    try:
        return parse([*positional, *([queues] if queues is not None else [])])
    except (InvalidValue, InvalidType) as error:
        raise CommandError(str(error), returncode=USAGE) from None


def _name(given: dict[str, Any]) -> str:
    try:
        name = check_worker(default_name() if given["worker_name"] is None else given["worker_name"])
    except (InvalidValue, InvalidType) as error:
        raise CommandError(str(error), returncode=USAGE) from None
    if len(name) > 90:
        raise CommandError("--worker-name: at most 90 characters; a boot id and number are added", returncode=USAGE)
    return name


def _reload(given: dict[str, Any]) -> bool:
    if given["reload"] is not None:
        return bool(given["reload"])
    return settings.DEBUG and not (given["once"] or given["drain"]) and "CI" not in os.environ
