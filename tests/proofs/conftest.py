"""Workers that never outlive their test, and the figures that proofs report."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.proofs.figures import figure, full, pytest_runtest_makereport, row
from tests.proofs.running import RunningWorker

__all__ = ["figure", "full", "pytest_runtest_makereport", "row", "run_worker"]


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
