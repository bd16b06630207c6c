"""The demo's own database, which every run makes anew, so that neither earlier runs nor `make serve` disturb it."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import Error, connection

SUFFIX = "_demo"


@contextmanager
def own_database(say: Callable[[str], None]) -> Iterator[str]:
    """Connect this process and those that it starts to a new database; `say` gets its name before its tables are made.

    Gives its name. Raises CommandError.
    """
    folder = Path(settings.DEMO_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise CommandError(f"Another demo is running (process {lock.read()}). Wait until it has ended.") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        name = _new_file(folder / "demo.sqlite3") if connection.vendor == "sqlite" else _new_database()
        say(name)
        call_command("migrate", verbosity=0)
        yield name


def _new_file(path: Path) -> str:
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    _connect_to(str(path), f"sqlite:///{path}")
    return os.path.relpath(path)


def _new_database() -> str:
    name = connection.settings_dict["NAME"] + SUFFIX
    try:
        connection.ensure_connection()
    except Error as error:
        raise CommandError(f"The database of DATABASE_URL cannot be reached: {_first_line(error)}") from None
    connection.close()
    quoted = connection.ops.quote_name(name)
    force = " WITH (FORCE)" if connection.vendor == "postgresql" else ""
    try:
        # Django's own way to a server without a database, which its tests use.
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {quoted}{force}")
            cursor.execute(f"CREATE DATABASE {quoted}")
    except Error as error:
        raise CommandError(
            f"The demo needs a database of its own, {name}, and this account cannot make it: {_first_line(error)}\n"
            f"Nothing was done. Give the account the right to create {name}, or use the database of DATABASE_URL as it "
            "is, while no other worker and no other relay runs on it: python manage.py demo --in-place"
        ) from None
    url = urlsplit(os.environ["DATABASE_URL"])
    _connect_to(name, url._replace(path=f"/{quote(name)}").geturl())
    return f"database {name}"


def _connect_to(name: str, url: str) -> None:
    settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = name
    # After the name was changed: Django leaves a connection open whose database is in memory.
    connection.close()
    os.environ["DATABASE_URL"] = url


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
