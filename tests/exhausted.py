"""A database that really has no connection left: by a limit of the account or the server, or by a pool of one."""

import threading
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from django.db import OperationalError, connection, connections

from tests.patience import wait_until
from tests.process.account import Account
from tests.settings import VENDOR

#: what may run out on the database of this run
LIMITS = {"sqlite": [], "postgres": ["account", "server", "pool"]}.get(VENDOR, ["account", "server"])
#: how long a pool lets a thread wait
POOL_SECONDS = 0.3


@contextmanager
def no_connection_left(limit):
    """In the block, the default alias gets no connection."""
    with _full_pool() if limit == "pool" else _full_server(limit):
        yield


@contextmanager
def _full_server(limit):
    account = Account()
    try:
        with ExitStack() as stack:
            if limit == "account":
                account.set_limit(1)
            else:
                stack.enter_context(_small_server())
            connection.close()
            stack.enter_context(_as(account))
            _take_all(stack)
            yield
    finally:
        account.drop()


@contextmanager
def _as(account):
    theirs = {"USER": account.name, "PASSWORD": account.password}
    with patch.dict(connection.settings_dict, theirs):
        try:
            yield
        finally:
            connection.close()


def _take_all(stack):
    """Open connections until one is refused."""
    for _ in range(500):
        one = connections.create_connection("default")
        try:
            one.ensure_connection()
        except OperationalError:
            return
        stack.callback(one.close)
    raise AssertionError("500 connections were not refused")


@contextmanager
def _small_server():
    """No more connections than now and a few, for accounts without special rights."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        if VENDOR == "postgres":
            cursor.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 2")
        else:
            cursor.execute("SELECT @@GLOBAL.max_connections")
            before = cursor.fetchone()[0]
            cursor.execute("SET GLOBAL max_connections = 10")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            if VENDOR == "postgres":
                cursor.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
            else:
                cursor.execute("SET GLOBAL max_connections = %s", [before])


@contextmanager
def _full_pool():
    """Django's pool of psycopg has one connection, and another thread has it."""
    pool = {"min_size": 1, "max_size": 1, "timeout": POOL_SECONDS}
    taken, over = threading.Event(), threading.Event()

    def take():
        connection.ensure_connection()
        taken.set()
        over.wait()
        connection.close()

    connection.close()
    with patch.dict(connection.settings_dict["OPTIONS"], {"pool": pool}):
        thread = threading.Thread(target=take)
        thread.start()
        try:
            wait_until(taken.is_set, what="the connection of the other thread")
            yield
        finally:
            over.set()
            thread.join()
            connection.close()
            connection.close_pool()
