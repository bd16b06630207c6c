"""The names of the cause classes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class FailureCause(StrEnum):
    """Why an attempt failed; stored as text in Job.cause and JobAttempt.cause."""

    FORMAT = "format"
    DEPENDENCY = "dependency"
    DATA = "data"
    RESOURCE = "resource"
    LOST = "lost"
    TIMEOUT = "timeout"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


#: the cause of an exception by what it carries, as a status or an errno; None: the next class of its MRO decides
Decide: TypeAlias = Callable[[BaseException], FailureCause | None]
Rule: TypeAlias = FailureCause | Decide
