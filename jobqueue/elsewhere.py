"""Refuse writes to other databases while one commit is to hold all that a block does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections

from jobqueue.exceptions import WrongDatabase

# Comments may come before the first word; after WITH the statement that writes may be anywhere.
_BEFORE = r"(?:\s|\(|/\*.*?\*/|--[^\n]*\n)*"
_WORD = r"(?:INSERT|UPDATE|DELETE|REPLACE|MERGE|TRUNCATE)\b"
_INSIDE = r"\b(?:(?:INSERT|REPLACE|MERGE)\s+INTO|DELETE\s+FROM|UPDATE\s+\S+(?:\s+(?:AS\s+)?\S+)?\s+SET)\b"
_WRITES = re.compile(rf"{_BEFORE}(?:{_WORD}|WITH\b.*{_INSIDE})", re.IGNORECASE | re.DOTALL)


@contextmanager
def refuse_writes_elsewhere(alias: str, who: str) -> Iterator[None]:
    """Raise WrongDatabase before a statement of this thread that writes on another alias than `alias` is sent.

    Known by its words: a function or procedure that writes is not seen, nor a connection of others.
    """
    with ExitStack() as stack:
        for other in connections:
            if other != alias:
                stack.enter_context(connections[other].execute_wrapper(_refusal(other, alias, who)))
        yield


def _refusal(other: str, alias: str, who: str) -> Callable[..., Any]:
    def refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if _WRITES.match(str(sql)):
            raise WrongDatabase(
                f"{who} commits on {alias!r}, where the queue is; a write to {other!r} cannot be in that commit. "
                "Nothing of the block is kept; write there before or after it, with context.fence, or publish an event."
            )
        return execute(sql, params, many, context)

    return refuse
