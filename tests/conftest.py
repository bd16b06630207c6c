"""Fixtures for all tests."""

import gc
import os
from contextlib import closing

import pytest
from django.db import connection

from tests.cli.schemas import json_meets_its_schema  # noqa: F401 - a fixture for all tests
from tests.flush import drop_when_nobody_is_there, flush_only_what_has_rows
from tests.selection import plugin as selection
from tests.servers import binaries, control
from tests.servers import rabbitmq as rabbitmq_server
from tests.servers.provide import Provider
from tests.servers.state import StateDir
from tests.settings import VENDOR

flush_only_what_has_rows()
if VENDOR == "postgres":
    drop_when_nobody_is_there()

#: a property of a test: a line for the end of the run
SAID = "said"

# A test that forks has copies of the connections of idle threads. Collecting one would end the session of its thread.
os.register_at_fork(after_in_child=gc.freeze)

# The machine's own defaults of runworker must not matter.
for variable in [name for name in os.environ if name.startswith("JOBQUEUE_WORKER_")]:
    del os.environ[variable]


def pytest_configure(config):
    """Leave out what runs on other databases in the short run, and record statements."""
    selection.register(config, VENDOR)


def pytest_collection_finish():
    """Take the modules and tests out of the search for garbage: they stay until the end of the run."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config):
    """Say which database the tests use."""
    return f"jobqueue tests on {VENDOR}"


def pytest_terminal_summary(terminalreporter):
    """Print what tests have measured and want the log of the run to say."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == SAID and report.when == "call":
                terminalreporter.write_line(value)


def pytest_collection_modifyitems(items):
    """Write the finding numbers of a test into the report that `make prove ISSUE=findings` reads."""
    for item in items:
        for mark in item.iter_markers("finding"):
            item.user_properties.append(("finding", mark.kwargs["number"]))


@pytest.fixture
def say(record_property):
    """say(line): print the line after all tests, if this one passes."""
    return lambda line: record_property(SAID, line)


@pytest.fixture(autouse=True)
def forgetful():
    """No test finds what the process has remembered in those before it."""
    from tests import memories

    memories.reset()


#: how long a database may take that is not slow, and for counts of pages that are left out when they take long
OF_THE_DATABASE = (
    "explain.database.ROUND_TRIP_SECONDS", "explain.database.CLAIM_SECONDS", "runs.walking.COUNT_SECONDS",
    "dead_letters.listing.COUNT_SECONDS", "admin.jobs.tabs.SECONDS",
)  # fmt: skip


@pytest.fixture(autouse=True)
def tolerant_of_round_trips(request, monkeypatch):
    """No busy machine is taken for a slow database, but in modules with MEASURES_ROUND_TRIPS."""
    if not getattr(request.module, "MEASURES_ROUND_TRIPS", False):
        for name in OF_THE_DATABASE:
            monkeypatch.setattr(f"jobqueue.{name}", 60.0)


@pytest.fixture
def own_registry(monkeypatch):
    """What a test registers as a task, a handler or an upcaster is gone after it."""
    from tests import memories

    memories.copy_registries(monkeypatch)


@pytest.fixture
def healthy_process(own_registry, db):
    """No tasks of apps that are not installed, which other tests have imported, and no empty pages of their jobs."""
    from jobqueue.tasks import registry
    from tests import memories

    # With their rules for causes: the classes that they name may be gone with the module.
    memories.forget_tasks(path for path in registry.names()[0] if not path.startswith("tests.app."))
    if VENDOR == "postgres":
        # The plans of a claim are judged by the size of the table. VACUUM must not be in the test's transaction.
        with closing(connection.copy()) as other, other.cursor() as cursor:
            cursor.execute("VACUUM (TRUNCATE) job_queue")
            cursor.execute("ANALYZE job_queue")


@pytest.fixture
def read_once(monkeypatch):
    """The test reads the flow rules once. They are read again after half a second, which may pass on a busy machine."""
    monkeypatch.setattr("jobqueue.gates.rules.RULES_SECONDS", 3600.0)


@pytest.fixture
def vendor_name():
    """sqlite, mysql, mariadb or postgres."""
    return VENDOR


@pytest.fixture
def sql(db):
    """Run one statement of a program that knows only SQL; the rows it gives, or the count of rows it changed."""

    def run(statement, params=()):
        with connection.cursor() as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    return run


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A Redis server of this run's own, to be stopped and paused: runs on two databases at a time share the others."""
    if binaries.find("redis") is None:
        # make test installs one.
        assert not os.environ.get("CI"), "there is no redis-server, and CI must not pass without it"
        pytest.skip("there is no redis-server on this machine")
    state = StateDir(tmp_path_factory.mktemp("redis"))
    provider = Provider(state, install=False)
    try:
        provider._provide_own("redis")
        yield control.load(state.directory)["redis"]
    finally:
        provider.down()


@pytest.fixture
def redis_url(redis_server):
    """The URL of that server."""
    return redis_server.url


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory):
    """A RabbitMQ of this run's own."""
    folder = tmp_path_factory.mktemp("rabbitmq")
    program = rabbitmq_server.install(folder / "install.log")
    if program is None:
        assert not os.environ.get("CI"), (
            "there is no rabbitmq-server (Debian's package), and CI must not pass without it"
        )
        pytest.skip("there is no rabbitmq-server on this machine")
    found = rabbitmq_server.RabbitMQ(folder, program)
    found.start()
    yield found
    found.remove()


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """The file that test tasks write to; read() gives its lines as lists of words."""
    from tests.app import tasks

    class Evidence:
        path = tmp_path / "evidence"

        def read(self, event=None):
            text = self.path.read_text() if self.path.exists() else ""
            lines = [line.split() for line in text.splitlines()]
            return [line for line in lines if event is None or line[0] == event]

    monkeypatch.setattr(tasks, "LOG", str(Evidence.path))
    return Evidence()
