"""What the tests of the doctor ask."""

import json
import socket
from contextlib import contextmanager
from unittest.mock import patch

from django.db import connection

from jobqueue.db.clock import UtcNow
from jobqueue.doctor import Level, examine
from jobqueue.doctor.examination import IDS
from jobqueue.models import Worker
from tests.settings import VENDOR

#: what the servers of the tests have for information: they run at the defaults, in zones other than UTC
PLAIN = {
    "sqlite": set(),
    "mysql": {"session_zone", "server_isolation", "driver_timeouts"},
    "mariadb": {"session_zone", "server_isolation", "driver_timeouts"},
    "postgres": {"driver_timeouts", "idle_transactions"},
}[VENDOR]


def add_worker(name="w1", queues="*", **columns):
    """The row of a worker process that runs now, however long the test takes."""
    plain = {"host": "h", "pid": 1, "supervisor_pid": 1, "boot_id": "b", "concurrency": 2, "version": "1"}
    if "heartbeat_at" not in columns:
        plain |= {"heartbeat_at": UtcNow(), "heartbeat_seconds": 3600.0}
    return Worker.objects.create(name=name, queues=queues, **(plain | columns))


def found():
    """examine(), if each finding has all that the page promises; without what every test server has."""
    findings = examine()
    for one in findings:
        assert one.id in IDS or one.id.startswith("jobqueue."), one
        assert one.level in Level
        assert one.text.endswith((".", ")")), one.text
        assert one.fix.strip()
        assert json.loads(json.dumps(one.evidence)) == one.evidence
    assert [one.level for one in findings] == sorted((one.level for one in findings), key=list(Level).index)
    return [one for one in findings if one.id not in PLAIN]


def ids():
    """The ids of what is found, errors first."""
    return [one.id for one in found()]


def the(name):
    """The only finding with this id."""
    findings = examine()
    named = [one for one in findings if one.id == name]
    assert len(named) == 1, findings
    return named[0]


@contextmanager
def unreachable():
    """In the block, nobody listens where the database was; on SQLite, its file cannot be opened."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = {"NAME": "/nowhere/jobs.sqlite3"} if VENDOR == "sqlite" else {"PORT": str(closed.getsockname()[1])}
        connection.close()
        with patch.dict(connection.settings_dict, place):
            try:
                yield
            finally:
                connection.close()
