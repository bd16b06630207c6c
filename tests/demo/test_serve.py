"""`make serve`: the port, the sample jobs, the person who logs in."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from urllib.request import urlopen

import pytest

from demo_project.demo import port
from tests.demo.helpers import manage, tables
from tests.docs.markdown import ROOT
from tests.patience import patient, wait_until


@pytest.fixture
def busy():
    """A port on which another program listens."""
    with socket.socket() as other:
        other.bind((port.HOST, 0))
        other.listen()
        yield str(other.getsockname()[1])


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "-1", "8000.0", "٨"])
def test_what_is_no_port_is_refused_in_words(text):
    assert "is not a number from 1 to 65535" in port.problem(text)


def test_a_busy_port_is_told_with_a_free_one(busy):
    told = port.problem(busy)
    assert told.startswith(f"Port {busy} of 127.0.0.1 is in use by another program")
    free = re.search(r"make serve PORT=(\d+)$", told)[1]
    assert port.problem(free) is None


def test_serve_checks_the_port_before_it_touches_the_database(busy, tmp_path):
    database = tmp_path / "demo.sqlite3"
    done = manage("serve", PORT=busy, DATABASE_URL=f"sqlite:///{database}")
    assert done.returncode == 1
    assert f"Port {busy} of 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr
    assert tables(database) == []


def test_make_passes_the_port_on():
    done = subprocess.run(["make", "-n", "serve", "PORT=8123"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 'PORT="8123" sh scripts/serve.sh' in done.stdout


def rows(database, statement):
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement).fetchall()


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with sample jobs."""
    found = tmp_path_factory.mktemp("serve") / "demo.sqlite3"
    done = manage("samples", "--password", "a password", "--at", "http://x/", DATABASE_URL=f"sqlite:///{found}")
    assert done.returncode == 0, done.stderr
    assert "200 sample jobs" in done.stdout
    assert "http://x/ Log in as admin with the password a password" in done.stdout
    return found


def test_the_samples_are_200_jobs_of_five_tasks_in_the_last_hour_with_different_failures(database):
    assert rows(database, "SELECT count(*), count(DISTINCT task) FROM job_queue") == [(200, 5)]
    causes = dict(rows(database, "SELECT cause, count(*) FROM job_queue WHERE status = 3 GROUP BY cause"))
    assert set(causes) >= {"data", "dependency", "resource"}
    states = dict(rows(database, "SELECT status, count(*) FROM job_queue GROUP BY status"))
    assert states[2] > 150
    assert states[3] >= 10
    assert states[4] >= 1
    assert states[0] >= 6
    ages = "(julianday('now') - julianday({})) * 86400"
    seconds = rows(
        database,
        f"SELECT max({ages.format('created_at')}), min({ages.format('finished_at')}) FROM job_queue WHERE status > 1",
    )
    assert 3000 < seconds[0][0] < 3600 + patient(120)
    assert seconds[0][1] > 0
    errors = rows(database, "SELECT DISTINCT error_class FROM job_attempt")
    assert len(errors) >= 5
    columns = "phase, matched >= 2, json_extract(filters, '$.cause')"
    redrives = rows(database, f"SELECT {columns} FROM job_audit WHERE kind = 'redrive'")
    # A worker of another test of this file stops it when its canary has failed.
    assert redrives in ([("canary", 1, "dependency")], [("stopped", 1, "dependency")])
    # Its jobs wait, and the page of queues says why; the worker of another test of this file runs no job of it.
    ruled = rows(database, "SELECT queue, mode, reason, by, concurrency FROM job_flow ORDER BY queue")
    assert ruled == [
        ("imports", "", "", "", 1),
        ("reports", "paused", "the books of the month are being closed", "admin", None),
    ]
    assert rows(database, "SELECT is_superuser FROM auth_user WHERE username = 'admin'") == [(1,)]


def test_serve_prints_the_address_of_the_jobs_page_replaces_the_samples_and_stops_cleanly(database, tmp_path):
    number = re.search(r"\d+$", port.problem("x"))[0]
    number = next(str(n) for n in range(int(number) + 5000, 65536) if port.problem(str(n)) is None)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DJANGO_")}
    environment |= {"DATABASE_URL": f"sqlite:///{database}", "PORT": number, "DEBUG": "True"}
    log = tmp_path / "log"
    with log.open("w") as out:
        serving = subprocess.Popen(
            [sys.executable, "manage.py", "serve"], cwd=ROOT, env=environment, stdout=out, stderr=out
        )
        try:
            # The worker's own first line ends with "Ctrl-C stops".
            last = "Ctrl-C stops the worker and the site"
            wait_until(lambda: last in log.read_text() or serving.poll() is not None, what=log.read_text)
            assert serving.poll() is None, log.read_text()
            address = re.search(r"http://\S+/admin/jobqueue/job/", log.read_text())[0]
            assert f":{number}/" in address
            assert f":{number}/admin/jobqueue/flowrule/ (one paused, one limited)" in log.read_text()
            # The page asks who you are.
            assert "Log in" in urlopen(address).read().decode()
        finally:
            serving.send_signal(signal.SIGTERM)
            serving.wait(patient())
    assert serving.returncode == 0, log.read_text()
    assert rows(database, "SELECT count(*), count(DISTINCT task) FROM job_queue") == [(200, 5)]
    assert rows(database, "SELECT count(*) FROM job_audit WHERE kind = 'redrive'") == [(1,)]
    assert rows(database, "SELECT queue FROM job_flow WHERE mode = 'paused'") == [("reports",)]
