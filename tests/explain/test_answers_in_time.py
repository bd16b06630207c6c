"""Every command, every page and every check answers, also while tables are locked or the server refuses writes."""

import threading
from io import StringIO

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection

from tests.admin.helpers import root
from tests.explain.broken import another_session, refusing_writes
from tests.factories import make_job
from tests.marks import committed, finding
from tests.patience import wait_until
from tests.settings import VENDOR

pytestmark = committed

TABLES = sorted({model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()})
LOCK_ALL = (
    f"LOCK TABLE {', '.join(TABLES)} IN ACCESS EXCLUSIVE MODE"
    if VENDOR == "postgres"
    else f"LOCK TABLES {', '.join(f'{table} WRITE' for table in TABLES)}"
)


def ends(work):
    """What work() returns or raises, in a thread of its own: a test must not hang with it."""
    found = []

    def run():
        try:
            found.append(work())
        except (Exception, SystemExit) as error:
            found.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive(), what="the end")
    return found[0]


COMMANDS = pytest.mark.parametrize(
    "words",
    [
        "list", "show 1", "explain", "explain 1", "retry 1", "retry --queue q", "redrives", "redrives stop 1",
        "note 0123456789abcdef --text x", "cancel 1", "discard 1", "release 1",
        "enqueue tests.app.tasks.add --args [1,2]",
        "prune --yes", "groups", "groups cancel 1", "keys", "queues", "queues pause q --reason x", "schedules",
        "schedules run x", "workers", "locks", "stats", "alarms", "unrunnable", "doctor",
    ],
)  # fmt: skip
POSTS = pytest.mark.parametrize(
    ("path", "values"),
    [
        ("job/", {"action": "cancel", "_selected_action": "1", "index": "0"}),
        ("redrive/new/", {"everything": "on", "canary": "0", "start": "1", "confirm": "yes"}),
        ("flowrule/queue/?queue=q", {"verb": "pause", "reason": "x"}),
    ],
)


def told(words):
    """The exit status of a sub-command, and what it says on stderr."""
    err = StringIO()
    try:
        call_command("jobs", *words.split(), stdout=StringIO(), stderr=err)
    except SystemExit as ended:
        return ended.code, err.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, err.getvalue()


@finding("O-H2")
@pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has no lock on one table")
class TestTablesThatAreAllLocked:
    """Nobody waits for them yet: there is no worker."""

    @COMMANDS
    def test_end_each_command_soon(self, words):
        with another_session(LOCK_ALL):
            status, text = ends(lambda: told(words))
        assert status in (0, 1, 3), text

    def test_are_named_by_explain_and_after_a_command_that_waited_in_vain(self):
        make_job()
        out, err = StringIO(), StringIO()
        with another_session(LOCK_ALL) as number:
            ends(lambda: call_command("jobs", "explain", stdout=out))
            ends(lambda: call_command("jobs", "cancel", "1", stderr=err))
        if VENDOR != "mariadb":
            assert f"Connection {number} has locked a whole table" in out.getvalue()
            assert f"Connection {number} has locked a whole table" in err.getvalue()

    def test_end_reap_leases_and_check_soon(self):
        err = StringIO()
        with another_session(LOCK_ALL):
            assert ends(lambda: call_command("reap_leases", stderr=err)).code == 3
            found = ends(lambda: run_checks(databases=["default"]))
        assert "cannot be read" in err.getvalue()
        assert isinstance(found, list), found

    @POSTS
    def test_end_what_is_posted_soon(self, path, values):
        client = root()
        with another_session(LOCK_ALL) as number:
            response = ends(lambda: client.post(f"/admin/jobqueue/{path}", values))
        assert response.status_code == 503, response.status_code
        assert "waiting for a lock" in response.content.decode()
        assert VENDOR == "mariadb" or f"Connection {number}" in response.content.decode()


class TestAServerThatRefusesWrites:
    @COMMANDS
    def test_ends_each_command_soon(self, words):
        make_job()
        with refusing_writes():
            status, text = told(words)
        assert status in (0, 1, 2, 3, 5), text

    def test_ends_reap_leases_and_check_soon(self):
        with refusing_writes():
            with pytest.raises(SystemExit) as ended:
                call_command("reap_leases", stderr=StringIO())
            run_checks(databases=["default"])
        assert ended.value.code == 3

    @POSTS
    def test_ends_what_is_posted_soon(self, path, values):
        client = root(raise_request_exception=False)
        values = values | {"_selected_action": str(make_job())}
        with refusing_writes():
            assert client.post(f"/admin/jobqueue/{path}", values).status_code
