"""What the page says of the queue's database and of this process: versions, isolation, claims, clocks, migrations."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import django
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

import jobqueue
from jobqueue.admin.page.formatting import NOTHING, badge, plain, span, stacked
from jobqueue.db import vendor
from jobqueue.db.clock import SKEW_SECONDS, compare_clocks
from jobqueue.masking.urls import hide_database

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

#: a difference of clocks that nobody would notice
_EQUAL_SECONDS = 0.05


def versions() -> Iterator[tuple[StrOrPromise, str]]:
    """The facts of this process. No query."""
    release = f"jobqueue {jobqueue.__version__}, Django {django.get_version()}, Python {platform.python_version()}"
    yield _("versions"), release
    yield _("time zone of the pages"), timezone.get_current_timezone_name()


def server_facts(using: str) -> Iterator[tuple[StrOrPromise, str]]:
    """The facts of the database, by five small queries. Raises Error if it does not answer."""
    connection, found = connections[using], vendor(using)
    yield _("database"), stacked(plain(found.describe(connection)), plain(_place(using)))
    yield _("isolation of sessions"), plain(found.isolation(connection))
    skips = "SKIP LOCKED" in found.claim_form
    yield "SKIP LOCKED", gettext("yes") if skips else gettext("no: one worker writes at a time")
    yield _("how workers claim"), plain(found.claim_form)
    yield _("clock of this host"), _clock(using)
    yield _("migrations"), _migrations(using)


def _place(using: str) -> str:
    """Such as "default: shop on db.internal:3306"; no account and no password."""
    entry = connections[using].settings_dict
    host, port = entry.get("HOST") or "", entry.get("PORT") or ""
    name = f"{using}: {hide_database(str(entry['NAME']))}"
    if not host:
        return name
    return gettext("%(name)s on %(host)s") % {"name": name, "host": f"{host}:{port}" if port else host}


def _clock(using: str) -> str:
    ahead = compare_clocks(using).ahead_seconds
    if abs(ahead) < _EQUAL_SECONDS:
        return gettext("as that of the database server")
    text = (
        gettext("%(time)s ahead of the database server")
        if ahead > 0
        else gettext("%(time)s behind the database server")
    )
    told = text % {"time": span(ahead)}
    return badge("expired", told) if abs(ahead) > SKEW_SECONDS else told


def _migrations(using: str) -> str:
    """The newest one, and those that were not run. Files are only listed: a page does not load those of all apps."""
    module, _is_explicit = MigrationLoader.migrations_module("jobqueue")
    if module is None:
        # MIGRATION_MODULES says that there are none.
        return NOTHING
    known = sorted(one.name for one in iter_modules(import_module(module).__path__) if one.name[0] not in "_~")
    applied = {name for app, name in MigrationRecorder(connections[using]).applied_migrations() if app == "jobqueue"}
    missing = [name for name in known if name not in applied]
    if missing:
        return badge("failed", gettext("not run: %(names)s") % {"names": ", ".join(missing)})
    newest = known[-1] if known else NOTHING
    return gettext("all were run, the last one is %(name)s") % {"name": newest}
