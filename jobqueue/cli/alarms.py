"""jobs alarms: list the alarms that fire; exit status 1 if there is one, or if nobody looks."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.alarms import Alarm, firing
from jobqueue.alarms.alarm import RUNBOOKS
from jobqueue.alarms.looking import is_stale, last_look_seconds
from jobqueue.alarms.recipients import facts
from jobqueue.cli.arguments import add_database, add_json
from jobqueue.cli.tables import aligned
from jobqueue.cli.watch import add_watch, repeat
from jobqueue.conf import load
from jobqueue.durations import format_seconds

#: exit status while an alarm fires, or nobody would notice it
FIRING = 1
_HEAD = ("queue", "alarm", "value", "threshold", "since", "about", "runbook")


def declare(parser: ArgumentParser) -> None:
    add_watch(parser)
    add_json(parser, "print one JSON object; with --watch one in each line")
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    def show(block: OutputWrapper) -> int:
        found, age = firing(using=using), last_look_seconds(using=using)
        if given["json"]:
            # Without ended_at and state: they fire.
            listed = [{name: value for name, value in facts(one).items() if name not in _OF_ENDS} for one in found]
            block.write(json.dumps({"version": 1, "alarms": listed, "last_look_seconds": age}))
        elif given["verbosity"] > 0:
            _write(block, found, age)
        return FIRING if found or is_stale(age) else 0

    return repeat(show, out, using, given, words=f"alarms of {using}")


_OF_ENDS = ("state", "ended_at")


def _write(out: OutputWrapper, found: list[Alarm], age: float | None) -> None:
    if not load().alarms.watches:
        out.write("JOBQUEUE['ALARMS'] has no thresholds: nobody looks")
    elif age is None:
        out.write("nobody has looked yet: a worker without --no-reaper does, and reap_leases")
    elif is_stale(age):
        out.write(f"the last look was {format_seconds(age)} ago: no worker without --no-reaper seems to run")
    if not found:
        out.write("it is not known whether an alarm fires" if is_stale(age) else "no alarm fires")
        return
    for line in aligned([_HEAD, *map(_row, found)], numbers=(2, 3)):
        out.write(line)


def _row(alarm: Alarm) -> tuple[str, ...]:
    since = f"{alarm.since:%Y-%m-%d %H:%M:%S}"
    figures = f"{alarm.value:,g}", f"{alarm.threshold:,g}"
    return (alarm.queue or "(workers)", alarm.name, *figures, since, alarm.names or "-", RUNBOOKS[alarm.name])
