"""What becomes of a redrive whose step raised: it is due again in a second, or ends. Its dead letters stay as they are.

Each function returns False if the database refuses that write, too.
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import (
    Error,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
)
from django.db.models import QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.exceptions import OutcomeUnknown
from jobqueue.failures import storable
from jobqueue.failures.text import message
from jobqueue.models import Redrive

#: errors of the database or of the connection, not of one redrive
OF_THE_DATABASE = (
    OperationalError, ProgrammingError, InterfaceError, InternalError, NotSupportedError, OutcomeUnknown
)  # fmt: skip
#: between two tries of a step
_LATER_SECONDS = 1.0
#: of a wait for the row of a redrive
_LOCK_SECONDS = 1.0


def reason_of(error: Exception) -> str:
    """An error in one line, as the row of a redrive can store it."""
    return storable(" ".join(f"{type(error).__name__}: {message(error)}".split()), 200)


def put_off(run_id: int, number: int, using: str) -> bool:
    """Let other redrives go first, unless another process has taken step `number` meanwhile."""
    return _written(lambda: _rows(run_id, number, using).update(due_at=UtcNowPlus(_LATER_SECONDS)), using)


def end(run_id: int, number: int, reason: str, using: str) -> bool:
    """Stop a redrive whose step cannot be taken, unless another process has taken it meanwhile."""
    run = Redrive()
    run.end(Redrive.State.STOPPED, reason)

    def write() -> None:
        _rows(run_id, number, using).update(
            phase=run.phase, reason=run.reason, pending=run.pending, due_at=run.due_at, ended_at=run.ended_at,
            steps=number + 1, updated_at=UtcNow(),
        )  # fmt: skip

    return _written(write, using)


def _rows(run_id: int, number: int, using: str) -> QuerySet[Redrive]:
    return Redrive.objects.using(using).filter(pk=run_id, steps=number, due_at__isnull=False)


def _written(write: Callable[[], object], using: str) -> bool:
    try:
        with vendor(using).locks.timed_transaction(connections[using], _LOCK_SECONDS):
            write()
    except Error:
        return False
    return True
