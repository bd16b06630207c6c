"""All calls that raise real exceptions, by what they do."""

from tests.failures.real import Raises, rows, services, system, web

REAL = Raises().of(*web.GROUPS, *services.GROUPS, *system.GROUPS, *(rows.here(group) for group in rows.GROUPS))
