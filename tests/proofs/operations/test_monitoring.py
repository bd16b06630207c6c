"""An operator looks at the server's processes, transactions and locks while every statement of ours runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest
from django.db import connection

from jobqueue.db import vendor
from tests.launch import ROOT
from tests.marks import committed, finding
from tests.patience import patient
from tests.settings import VENDOR

pytestmark = [
    committed,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="statements have no parameters in their text"),
]
PROCESSES = "SELECT id, info FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
OTHERS = {
    "mysql": (
        "SHOW FULL PROCESSLIST",
        "SELECT * FROM information_schema.innodb_trx",
        "SELECT * FROM performance_schema.processlist",
        "SELECT * FROM performance_schema.threads",
        "SELECT * FROM performance_schema.events_statements_current",
        "SELECT * FROM performance_schema.data_locks",
        "SELECT * FROM performance_schema.data_lock_waits",
        "SHOW ENGINE INNODB STATUS",
    ),
    "mariadb": (
        "SHOW FULL PROCESSLIST",
        "SELECT * FROM information_schema.innodb_trx",
        "SELECT * FROM information_schema.innodb_locks",
        "SELECT * FROM information_schema.innodb_lock_waits",
        "SHOW ENGINE INNODB STATUS",
    ),
}.get(VENDOR, ())


@contextmanager
def load(processes, threads):
    """So many processes that run every verb; a Counter of what they did, filled at the end of the block."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.proofs.settings",
        "JOBQUEUE_TEST_NAME": str(connection.settings_dict["NAME"]),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.proofs.load", str(threads)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) for _ in range(processes)]
    done = Counter()
    try:
        for process in started:
            assert process.stdout.readline() == "begun\n"
        yield done
        for process in started:
            out, err = process.communicate(timeout=patient(60))
            assert process.returncode == 0, err[-2000:]
            done.update({name: int(count) for name, count in (word.split("=") for word in out.split())})
    finally:
        for process in started:
            process.kill()
            process.communicate()


@finding("item-1")
def test_an_operator_can_look_at_any_moment(full, figure):
    """Looks at the process list, and as many at transactions, locks and statements, beside load of every verb."""
    rounds = 10_000 if full else 1_500
    refused, seen, garbled = Counter(), Counter(), []
    with load(4 if full else 2, 2) as done:
        for number in range(rounds):
            for statement in (PROCESSES, OTHERS[number % len(OTHERS)]):
                try:
                    rows = look(statement)
                except Exception as error:
                    refused[f"{statement}: {type(error).__name__} {str(error)[:120]}"] += 1
                    continue
                seen[statement] += len(rows)
                garbled += [row for row in rows if is_garbled(row)]
            if number % 50 == 0:
                vendor("default").diagnostics.waits(connection)
    assert refused == Counter()
    assert garbled == []
    # There was something to be seen, and every verb ran meanwhile.
    assert seen[PROCESSES] >= rounds
    assert min(done.values()) > 0
    figure("looks at information_schema.processlist", rounds)
    figure("looks at transactions, locks and statements", rounds)
    figure("calls beside them", sum(done.values()))
    figure("errors", sum(refused.values()))


def look(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def is_garbled(row):
    """What a server puts in the place of bytes that are no text."""
    texts = [value for value in row if isinstance(value, str)]
    return any("\\x" in text or "�" in text or "'???" in text for text in texts)
