"""Which database a command is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections

from jobqueue.conf import load

USAGE, MISCONFIGURED = 2, 4


def database_of(given: Mapping[str, Any]) -> str:
    """The alias of --database, or of JOBQUEUE. Raises CommandError: status 2 for the option, 4 for the settings."""
    try:
        configured = load().database
    except ImproperlyConfigured as error:
        raise CommandError(str(error), returncode=MISCONFIGURED) from None
    if given["database"] is None:
        if configured not in connections.settings:
            raise CommandError(
                f"JOBQUEUE['DATABASE'] = {configured!r} is not in DATABASES ({_known()}). Nothing was done; correct "
                "the setting.",
                returncode=MISCONFIGURED,
            )
        return configured
    if given["database"] not in connections.settings:
        raise CommandError(f"--database {given['database']!r} is not in DATABASES ({_known()})", returncode=USAGE)
    return str(given["database"])


def _known() -> str:
    return ", ".join(sorted(connections.settings))
