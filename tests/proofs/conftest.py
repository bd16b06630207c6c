"""Figures that proofs report, and workers that never outlive their test."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from django.db import connection

from tests.proofs.running import RunningWorker
from tests.settings import VENDOR

FULL = os.environ.get("JOBQUEUE_PROVE") == "1"


@pytest.fixture
def full():
    """Whether to run at full size."""
    return FULL


@pytest.fixture
def figure(request):
    """figure("what", value): kept with the test's name for docs/proof/."""
    found = {}
    yield lambda what, value: found.__setitem__(what, value)
    out = os.environ.get("JOBQUEUE_PROVE_OUT")
    if out and found:
        line = {"test": request.node.name, "says": (request.function.__doc__ or "").strip(), "on": VENDOR, **found}
        with Path(out).open("a") as file:
            file.write(json.dumps(line) + "\n")


@pytest.fixture
def run_worker(tmp_path):
    """Start runworker with options; killed at the end of the test if it still runs."""
    started = []

    def start(*options, **env):
        folder = tmp_path / f"worker-{len(started)}"
        folder.mkdir()
        worker = RunningWorker(folder, *options, env={k: str(v) for k, v in env.items()})
        started.append(worker)
        return worker

    # The worker must see what the test wrote, and the other way round.
    connection.close()
    yield start
    for worker in started:
        worker.kill_all()
