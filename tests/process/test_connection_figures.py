"""What the probe of a worker says of connections: opened, refused, and how long its threads waited for them."""

import pytest

from tests.app import tasks
from tests.factories import state
from tests.marks import committed
from tests.patience import wait_until
from tests.process.harness import kill_sessions
from tests.process.probe import free_port, metric
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no limit of connections")]


def test_a_worker_counts_connections_that_are_refused_and_its_waits(worker, account):
    port = free_port()
    group = worker("--probe-port", port, **account.environment())
    first = tasks.add.enqueue(1, 2).id
    wait_until(lambda: state(first) == "DONE", what="the first job")
    opened, waited = metric(port, "connections_opened_total"), metric(port, "connection_wait_us_total")
    assert opened >= 1
    assert waited > 0
    assert metric(port, "connections_refused_total") == 0
    account.set_limit(1)
    kill_sessions()
    # If the thread that claims gets the only connection, the one that writes how the job ended is refused.
    second = tasks.add.enqueue(1, 2).id
    wait_until(lambda: metric(port, "connections_refused_total") > 0, what="a refusal")
    account.set_limit(None)
    wait_until(lambda: state(second) == "DONE", what="the second job")
    assert metric(port, "connections_opened_total") > opened
    assert metric(port, "connection_wait_us_total") > waited
    assert "Traceback" not in group.text()
