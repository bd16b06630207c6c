"""Fixtures of tests that start processes."""

import os
import re

import pytest
from django.db import connection

from tests.holeproxy import HoleProxy
from tests.process.account import Account
from tests.process.harness import SHORT, command, kill_sessions
from tests.settings import VENDOR


@pytest.fixture
def start(transactional_db, evidence):
    """Start management commands; whatever still runs at the end is killed."""
    groups = []

    def run(*arguments, **environment):
        groups.append(command(*arguments, evidence=evidence, **environment))
        return groups[-1]

    yield run
    for group in groups:
        group.end()


@pytest.fixture
def worker(start):
    """Start runworker with short heartbeats and these options."""
    return lambda *options, **environment: start("runworker", *SHORT, *options, **environment)


@pytest.fixture
def gate(tmp_path):
    """The file that lets gated jobs go on, once it is touched."""
    return tmp_path / "gate"


@pytest.fixture
def account(worker):
    """An account of the server for this test."""
    made = Account()
    yield made
    kill_sessions()
    made.drop()


@pytest.fixture
def proxied():
    """A proxy, and what lets a worker go through it."""
    variable = f"JOBQUEUE_TEST_{VENDOR.upper()}_URL"
    port = int(connection.settings_dict["PORT"])
    proxy = HoleProxy(port)
    yield proxy, {variable: re.sub(f":{port}/", f":{proxy.port}/", os.environ[variable])}
    proxy.close()
