"""python -m tests.proofs.dashboard.rivals: tables of another package, filled, and a page of its admin, timed.

Runs where those packages are installed, in the environment of rivals_requirements.txt. Reads {"rival": …, "do": …,
"database": …} from its input. "make" makes the tables with the package's migrations, and prints the names of the new
ones. "fill" adds `rows` rows. "page" asks for `address` up to `times` times and prints the seconds of each request, or
"over" once it has taken `limit` seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.models.signals import post_migrate

from tests.proofs.dashboard.rival_rows import RIVALS

urlpatterns: list[Any] = []
APPS = ("admin", "auth", "contenttypes", "sessions", "messages")
MIDDLEWARE = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "tests.proofs.dashboard.rivals.as_root",
)
PROCESSORS = ("django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
              "django.contrib.messages.context_processors.messages")  # fmt: skip


class Late(Exception):
    """A page has taken too long."""


def as_root(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A middleware: everybody is a superuser, who is read from no table."""
    from django.contrib.auth.models import User

    def answer(request: Any) -> Any:
        request.user = User(pk=1, username="root", is_staff=True, is_superuser=True, is_active=True)
        return get_response(request)

    return answer


def set_up(asked: dict[str, Any]) -> None:
    """Django with the package alone."""
    rival = RIVALS[asked["rival"]]
    settings.configure(
        SECRET_KEY="x",
        ALLOWED_HOSTS=["testserver"],
        INSTALLED_APPS=[*(f"django.contrib.{name}" for name in APPS), rival.app],
        DATABASES={"default": asked["database"]},
        ROOT_URLCONF="tests.proofs.dashboard.rivals",
        MIDDLEWARE=MIDDLEWARE,
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        MESSAGE_STORAGE="django.contrib.messages.storage.cookie.CookieStorage",
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
                    "OPTIONS": {"context_processors": PROCESSORS}}],
        STATIC_URL="static/",
        # As the time zone of the connection: for another one MySQL needs tables of time zones.
        TIME_ZONE="UTC",
        USE_TZ=True,
        **rival.settings,
    )  # fmt: skip
    django.setup()
    from django.contrib import admin
    from django.urls import path

    # Imported by its name too.
    sys.modules["tests.proofs.dashboard.rivals"] = sys.modules[__name__]
    urlpatterns.append(path("admin/", admin.site.urls))


def make(asked: dict[str, Any]) -> list[str]:
    """The names of the tables that are new."""
    # Not for us: it writes content types and permissions.
    post_migrate.receivers = []
    before = set(connection.introspection.table_names())
    call_command("migrate", RIVALS[asked["rival"]].label, verbosity=0)
    return sorted(set(connection.introspection.table_names()) - before)


def fill(asked: dict[str, Any]) -> None:
    """Rows, so many at a time as the table of numbers has."""
    dialect, chunk = connection.vendor, asked["chunk"]
    statements = RIVALS[asked["rival"]].statements(SimpleNamespace(**_dialects()[dialect]))
    for done in range(0, asked["rows"], chunk):
        count = min(chunk, asked["rows"] - done)
        with connection.cursor() as cursor:
            for statement in statements:
                # Not as parameters: the drivers write % in several ways.
                cursor.execute(statement.replace("OFFSET_", str(done)).replace("COUNT_", str(count)))


def _dialects() -> dict[str, dict[str, Any]]:
    n = "(p.n + OFFSET_)"
    return {
        "sqlite": {
            "n": n,
            "uid": f"printf('%032x', {n})",
            "text": lambda value: f"CAST({value} AS TEXT)",
            "join": lambda *parts: " || ".join(parts),
            "at": f"strftime('%Y-%m-%d %H:%M:%f', '2026-01-01', '+' || ({n} / 100.0) || ' seconds')",
        },
        "mysql": {
            "n": n,
            "uid": f"LPAD(LOWER(HEX({n})), 32, '0')",
            "text": lambda value: f"CAST({value} AS CHAR)",
            "join": lambda *parts: f"CONCAT({', '.join(parts)})",
            "at": f"TIMESTAMPADD(MICROSECOND, {n} * 10000, '2026-01-01 00:00:00.000000')",
        },
        "postgresql": {
            "n": n,
            "uid": f"LPAD(TO_HEX({n}), 32, '0')::uuid",
            "text": lambda value: f"CAST({value} AS TEXT)",
            "join": lambda *parts: " || ".join(parts),
            "at": f"TIMESTAMPTZ '2026-01-01 00:00:00+00' + {n} * INTERVAL '10 milliseconds'",
        },
    }


def page(asked: dict[str, Any]) -> Iterator[float | str]:
    """The seconds of each request; "over" ends them."""
    from django.test import Client

    client, limit = Client(), asked["limit"]
    address = _with_row(asked["address"])
    for _ in range(asked["times"]):
        begun = time.perf_counter()
        try:
            with _until(begun + limit):
                response = client.get(address)
                response.content  # noqa: B018
        except (Late, OperationalError) as error:
            seconds = time.perf_counter() - begun
            if seconds < 0.9 * limit:
                raise
            print(f"{address}: {error}", file=sys.stderr)
            yield "over"
            return
        seconds = time.perf_counter() - begun
        assert response.status_code == 200, (address, response.status_code, response.get("Location"))
        yield seconds


def _with_row(address: str) -> str:
    """The address of the page of a row: {table.column} stands for one of its values."""
    before, mark, rest = address.partition("{")
    if not mark:
        return address
    place, _, after = rest.partition("}")
    table, column = place.split(".")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM {table} ORDER BY {column} DESC LIMIT 1")
        return f"{before}{cursor.fetchone()[0]}{after}"


@contextmanager
def _until(end: float) -> Iterator[None]:
    """Let the server end each statement that still runs at `end`."""
    # On MySQL and MariaDB the name is asked of the server, so it must be known before there is a wrapper.
    statement = LIMITS.get(connection.display_name)

    def execute(run: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        left = round(1000 * (end - time.perf_counter()))
        if left <= 0:
            raise Late("no time is left")
        # Not through Django's cursor, which would ask again.
        if statement:
            with connection.connection.cursor() as cursor:
                cursor.execute(statement.format(left))
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield


#: of milliseconds
LIMITS = {
    "MySQL": "SET SESSION max_execution_time = {}",
    "MariaDB": "SET SESSION max_statement_time = {} / 1000",
    "PostgreSQL": "SET statement_timeout = {}",
}


def main() -> None:
    """Do what the input says."""
    asked = json.load(sys.stdin)
    set_up(asked)
    if asked["do"] == "make":
        print(json.dumps(make(asked)))
    elif asked["do"] == "fill":
        fill(asked)
    else:
        for seconds in page(asked):
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
