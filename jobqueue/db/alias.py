"""Which database a call is about."""

from __future__ import annotations

from django.db import connections

from jobqueue.conf import load
from jobqueue.exceptions import InvalidType, InvalidValue


def alias_of(using: str | None) -> str:
    """`using`, or JOBQUEUE["DATABASE"] for None. Raises InvalidType, or InvalidValue for what is not in DATABASES."""
    if using is None:
        return load().database
    if not isinstance(using, str):
        raise InvalidType(f"using must be a database alias, got {type(using).__name__}. Nothing was written.")
    if using not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        raise InvalidValue(f"the database {using!r} is not in DATABASES ({known}). Nothing was written.")
    return using
