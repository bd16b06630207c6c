"""Commands of the demo project on the database under test."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from urllib.parse import quote

from django.db import connection

from tests.docs.markdown import ROOT
from tests.patience import patient
from tests.settings import VENDOR


def manage(*words, redis_url="", **more):
    """Run manage.py with the demo's settings; the finished process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DJANGO_")}
    environment |= {"DATABASE_URL": database_url(), "REDIS_URL": redis_url, "DEBUG": "True", **more}
    command = [sys.executable, "manage.py", *words]
    seconds = 4 * patient()  # some have a minute of their own to fill
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)


def migrate(app, *to):
    """Make the tables of an app of the demo, or with "zero" remove them."""
    migrated = manage("migrate", app, *to, "-v0")
    assert migrated.returncode == 0, migrated.stderr


def database_url():
    """Where the tests' tables are."""
    settings = connection.settings_dict
    if VENDOR == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    scheme = "postgres" if VENDOR == "postgres" else "mysql"
    account = f"{quote(settings['USER'])}:{quote(settings['PASSWORD'])}"
    return f"{scheme}://{account}@{settings['HOST']}:{settings['PORT']}/{quote(settings['NAME'])}"


def tables(database):
    """The tables in a file of SQLite; Django's own checks may make the file, but none of them."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT name FROM sqlite_master").fetchall()
