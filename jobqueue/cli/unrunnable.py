"""jobs unrunnable: which waiting jobs the code at hand cannot run."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from jobqueue.log_format import one_line
from jobqueue.tasks import registry
from jobqueue.tasks.unrunnable import Unrunnable, find_unrunnable

FOUND = 5


def declare(parser: ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--fail-if-any", action="store_true", help=f"exit with {FOUND} if there are some")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--database", default=None, metavar="ALIAS")


def run(out: Any, using: str, given: dict[str, Any]) -> int:
    """Print them; the exit status."""
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
