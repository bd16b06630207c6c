"""Which database a call is about, and the error for a database that does not have our tables."""

from __future__ import annotations

import re

from django.apps import apps
from django.db import DatabaseError, connections

from jobqueue.conf import load
from jobqueue.db import fault_vendor
from jobqueue.exceptions import InvalidType, InvalidValue, NotMigrated, WrongDatabase, WrongSettings


def alias_of(using: str | None) -> str:
    """`using`, or JOBQUEUE["DATABASE"] for None.

    For what is not in DATABASES it raises InvalidType or InvalidValue, and WrongSettings if the setting is wrong.
    """
    if using is None:
        return configured_alias(load().database, "JOBQUEUE['DATABASE']")
    if not isinstance(using, str):
        raise InvalidType(f"using must be a database alias, got {type(using).__name__}. Nothing was written.")
    if using not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        raise InvalidValue(f"the database {using!r} is not in DATABASES ({known}). Nothing was written.")
    return using


def configured_alias(alias: object, setting: str) -> str:
    """`alias`, which stands in `setting`. Raises WrongSettings for what is not in DATABASES."""
    if alias in connections.settings:
        return str(alias)
    known = ", ".join(sorted(connections.settings))
    raise WrongSettings(f"{setting} = {alias!r} is not in DATABASES ({known}). Nothing was done; correct the setting.")


def is_in_memory(using: str) -> bool:
    """Whether the database is SQLite in memory, of which each process has its own."""
    ask = getattr(connections[using], "is_in_memory_db", None)
    return ask is not None and bool(ask())


def _reason(queue: str) -> str:
    """Why a table of ours is not in the queue's database, and what to do."""
    if is_in_memory(queue):
        return (
            ", which is in memory: each process begins with an empty one. Nothing was written. Give "
            f"DATABASES[{queue!r}] a file as NAME, or migrate in this process."
        )
    text = (
        ", because the migrations of jobqueue were not run there. Nothing was written. Run: python manage.py migrate "
        f"--database {queue}"
    )
    if apps.ready:
        return text
    return (
        f"{text}. This call was made before Django was ready, probably by an AppConfig.ready(), which migrate runs, "
        "too, before it makes the tables. Enqueue in a command or a schedule instead."
    )


class _NotThere(WrongDatabase, DatabaseError):
    """What commands and loops expect from a database that they cannot use, too."""


class explain_missing_table:
    """Raise NotMigrated for a table of ours that is missing in the queue's database, in another WrongDatabase.

    A block.
    """

    # Not a @contextmanager: every enqueue passes here.

    __slots__ = ("_using",)

    def __init__(self, using: str) -> None:
        self._using = using

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, DatabaseError) or isinstance(error, (NotMigrated, _NotThere)):
            return
        if not fault_vendor(self._using).is_missing_table(error):
            return
        tables = {model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()}
        table = next((word for word in re.findall(r"\w+", str(error)) if word in tables), None)
        if table is None:
            return
        if self._using == (queue := load().database):
            raise NotMigrated(f"the table {table} is not in the database {queue!r}{_reason(queue)}") from error
        raise _NotThere(
            f"the table {table} is not in the database {self._using!r}; those of the queue are in {queue!r}. "
            f"Nothing was written. It must stand beside your rows to share their transaction: let the router make "
            f"jobqueue's tables on {self._using!r} too, and run migrate --database {self._using}."
        ) from error
