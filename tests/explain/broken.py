"""What is around the jobs, broken for real: a server that refuses writes, locks, a slow network, lost sessions."""

import os
import time
from contextlib import contextmanager

from django.db import connection

from tests.proxy import CuttingProxy
from tests.settings import VENDOR

#: by so much each answer is late
LATE_SECONDS = 0.12


class SlowProxy(CuttingProxy):
    """A network in which each answer is late: once, however many parts it has."""

    _is_asked = False

    def refuses(self, asked):
        self._is_asked = True
        return super().refuses(asked)

    def answered(self, data):
        if self._is_asked:
            time.sleep(LATE_SECONDS)
            self._is_asked = False
        return data


@contextmanager
def refusing_writes():
    """The database refuses writes, as an operator or a failover makes it."""
    name = connection.settings_dict["NAME"]
    on, off = {
        "sqlite": (["PRAGMA query_only = ON"], ["PRAGMA query_only = OFF"]),
        "mysql": (["SET GLOBAL super_read_only = ON"], ["SET GLOBAL read_only = OFF"]),
        "mariadb": (["SET GLOBAL tx_read_only = ON"], ["SET GLOBAL tx_read_only = OFF"]),
        "postgres": (
            [f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'],
            ["SET default_transaction_read_only = off", f'ALTER DATABASE "{name}" RESET default_transaction_read_only'],
        ),
    }[VENDOR]
    run(on)
    try:
        yield
    finally:
        run(off)


def run(statements):
    """Run these; later statements are those of a new session, unless SQLite would forget."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    if VENDOR != "sqlite":
        connection.close()


@contextmanager
def locked(job_id):
    """Another connection has written this job and keeps its transaction open."""
    holder = connection.copy()
    try:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
            (number,) = cursor.fetchone()
            cursor.execute("UPDATE job_queue SET priority = priority + 1 WHERE id = %s", [job_id])
        yield number
    finally:
        holder.rollback()
        holder.close()


def ports_of(pid):
    """The local ports of the connections of a process."""
    sockets = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            sockets.add(os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError:
            continue
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets}


def end_sessions_of(pid):
    """The server ends the sessions of a process; their number."""
    ports, ended = ports_of(pid), 0
    with connection.cursor() as cursor:
        if VENDOR == "postgres":
            cursor.execute("SELECT pid, client_port FROM pg_stat_activity WHERE client_port > 0")
        else:
            cursor.execute("SELECT id, SUBSTRING_INDEX(host, ':', -1) FROM information_schema.processlist")
        for session, port in cursor.fetchall():
            if str(port).isdigit() and int(port) in ports:
                ended += 1
                cursor.execute(f"SELECT pg_terminate_backend({session})" if VENDOR == "postgres" else f"KILL {session}")
    return ended


@contextmanager
def another_session(*statements):
    """A session that has run these and keeps its transaction open; its number."""
    holder = connection.copy()
    try:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgres" else "SELECT CONNECTION_ID()")
            (number,) = cursor.fetchone()
            for statement in statements:
                cursor.execute(statement)
        yield number
    finally:
        holder.rollback()
        holder.close()
