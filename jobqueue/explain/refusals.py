"""read_only: the database refuses writes, so no job starts or ends."""

from __future__ import annotations

from django.db import connections
from django.utils.translation import gettext

from jobqueue.db import vendor
from jobqueue.explain.explanation import Explanation


def read_only(using: str) -> list[Explanation]:
    """read_only, if the database refuses the writes of this process. One statement or two.

    Workers may have another account or another server.
    """
    setting = vendor(using).write_refusal(connections[using])
    if not setting:
        return []
    text = gettext("The database refuses writes (%(setting)s), so no job starts, and none can end.")
    step = gettext("Let it accept writes again. If it is a replica, give DATABASES the address of the primary.")
    return [Explanation("read_only", text % {"setting": setting}, {"setting": setting, "database": using}, step)]
