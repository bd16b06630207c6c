"""Errors that a function has caught, and that have undone its transaction all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, connections, transaction

from jobqueue.db import vendor


@contextmanager
def unswallowed(using: str) -> Iterator[None]:
    """A block inside a transaction: raise at its end the error that it swallowed, if nothing would be committed.

    Without it the end would look like a commit: a transaction that Django has marked for a rollback, or that the server
    has given up, ends without a word. set_rollback(True) without an error is left alone: somebody wants that.
    """
    connection, errors = connections[using], list[Error]()

    def watch(execute: Any, *statement: Any) -> Any:
        try:
            return execute(*statement)
        except Error as error:
            errors.append(error)
            raise

    with connection.execute_wrapper(watch):
        yield
    undone_by = vendor(using).undone_by(connection, errors)
    if undone_by is None and errors and transaction.get_rollback(using=using):
        undone_by = errors[-1]
    if undone_by is not None:
        undone_by.add_note(
            "This was caught, but it has undone the whole transaction: nothing is stored. "
            "Put what may fail into a transaction.atomic() of its own."
        )
        raise undone_by
