"""jobs unrunnable: list the waiting jobs that the code of this process cannot run."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue.cli.arguments import FOUND, add_database, add_json
from jobqueue.log_format import one_line
from jobqueue.tasks import registry
from jobqueue.tasks.unrunnable import Unrunnable, find_unrunnable

#: jobs that are looked at unless all are
SOME = 50_000


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="look at every waiting job, however many there are")
    parser.add_argument("--fail-if-any", action="store_true", help=f"exit {FOUND} if there are any; looks at all")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    list(registry.discover())
    found, complete = find_unrunnable(using=using, most=None if given["all"] or given["fail_if_any"] else SOME)
    if given["json"]:
        out.write(json.dumps({"version": 1, "unrunnable": [asdict(kind) for kind in found], "complete": complete}))
    elif given["verbosity"] > 0:
        for kind in found:
            out.write(_line(kind))
        jobs = sum(kind.jobs for kind in found)
        if complete:
            out.write(f"{jobs} waiting jobs cannot be run by this code")
        else:
            out.write(f"{jobs} of the jobs that are claimed first cannot be run by this code; --all looks at all")
    return FOUND if found and given["fail_if_any"] else 0


def _line(kind: Unrunnable) -> str:
    version = f" version {kind.payload_version}" if kind.payload_version > 1 else ""
    name = (kind.task or "(handler)") + version
    return one_line(f"{kind.jobs}  {kind.queue}  {name}  from #{kind.first_id}  {kind.why}")
