"""Sub-commands that apply one verb to jobs by their ids: cancel, discard, release."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import OutputWrapper

from jobqueue import transitions
from jobqueue.cli.arguments import FOUND, add_database, add_json
from jobqueue.cli.audited import audit_jobs
from jobqueue.validation import check_id


class Operation:
    """A sub-command. `meaning` is its docstring, `done` and `refused` what it says of a job."""

    def __init__(self, verb: Callable[..., bool], meaning: str, done: str, refused: str) -> None:
        self.__doc__ = meaning
        self._verb, self._done, self._refused = verb, done, refused

    def declare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("ids", nargs="+", metavar="ID", help="the id of a job")
        add_json(parser)
        add_database(parser)

    def run(self, out: OutputWrapper, using: str, given: dict[str, Any]) -> int:
        """Apply the verb to each job; 5 if one was not changed."""
        # All are checked before the first one is changed.
        ids = [check_id(given_id) for given_id in given["ids"]]
        found: dict[int, bool] = {}
        try:
            for job_id in ids:
                found[job_id] = self._verb(job_id, using=using)
        finally:
            # What was done before an error is told, too.
            self._tell(out, given, found)
            audit_jobs(given["subcommand"], (job_id for job_id, done in found.items() if done), using=using)
        return 0 if all(found.values()) else FOUND

    def _tell(self, out: OutputWrapper, given: dict[str, Any], found: dict[int, bool]) -> None:
        if given["json"]:
            out.write(json.dumps({"version": 1, "jobs": [{"id": i, "changed": done} for i, done in found.items()]}))
        elif given["verbosity"] > 0:
            for job_id, done in found.items():
                out.write(f"job {job_id} {self._done if done else self._refused}")


CANCEL = Operation(
    transitions.cancel,
    "jobs cancel: end waiting jobs now, and ask running jobs to stop.",
    "is canceled, or asked to stop if it runs",
    "was not changed: it has ended, or does not exist",
)
DISCARD = Operation(
    transitions.discard,
    "jobs discard: end failed and waiting jobs as canceled, so that they are dead letters no more.",
    "is discarded and will not run",
    "was not changed: it is neither waiting nor failed, or does not exist",
)
RELEASE = Operation(
    transitions.release_held,
    "jobs release: take running jobs from their workers, without using an attempt.",
    "was taken from its worker and is READY",
    "was not changed: it does not run, or has just ended",
)
