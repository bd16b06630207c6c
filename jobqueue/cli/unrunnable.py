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


def declare(parser: ArgumentParser) -> None:
    parser.add_argument("--fail-if-any", action="store_true", help=f"exit {FOUND} if there are any")
    add_json(parser)
    add_database(parser)


def run(out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
    list(registry.discover())
    found = find_unrunnable(using=using)
    if given["json"]:
        out.write(json.dumps({"version": 1, "unrunnable": [asdict(kind) for kind in found]}))
    elif given["verbosity"] > 0:
        for kind in found:
            out.write(_line(kind))
        out.write(f"{sum(kind.jobs for kind in found)} waiting jobs cannot be run by this code")
    return FOUND if found and given["fail_if_any"] else 0


def _line(kind: Unrunnable) -> str:
    version = f" version {kind.payload_version}" if kind.payload_version > 1 else ""
    name = (kind.task or "(handler)") + version
    return one_line(f"{kind.jobs}  {kind.queue}  {name}  from #{kind.first_id}  {kind.why}")
