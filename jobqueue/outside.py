"""A warning in development when a transaction that holds locks talks to the world outside."""

from __future__ import annotations

import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core import mail
from django.db import connections

_EVENTS = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_installing = threading.Lock()
_installed = False


class OutsideCallWarning(RuntimeWarning):
    """A network connection was opened inside a block that holds locks."""


class _Here(threading.local):
    blocks = 0


_here = _Here()


@contextmanager
def forbid_outside_calls() -> Iterator[None]:
    """Warn with OutsideCallWarning when this thread opens a connection, or sends a datagram, inside the block.

    Only with DEBUG, and while tests run; otherwise the block is just run. Found by an audit hook of Python
    (sys.addaudithook: socket.connect, socket.sendto, socket.sendmsg), so connections that are open already, sockets of
    C libraries and other threads are not seen. The databases of DATABASES and Unix sockets are let through. Make the
    warning an error (python -W error::jobqueue.outside.OutsideCallWarning) and the call itself fails.
    """
    if not is_watched():
        yield
        return
    _install()
    _here.blocks += 1
    try:
        yield
    finally:
        _here.blocks -= 1


def is_watched() -> bool:
    """Whether this is development: DEBUG, or a test run (Django's own has set up its mailbox)."""
    return bool(settings.DEBUG) or hasattr(mail, "outbox")


def _install() -> None:
    """Once per process: a hook cannot be taken away again."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_hook)
            _installed = True


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS or not _here.blocks:
        return
    address = args[1]
    if not isinstance(address, tuple) or address[:2] in _databases():
        return
    warnings.warn(
        f"a connection to {address[0]}:{address[1]} was opened inside a transaction: it holds its locks, and others "
        "wait, for as long as the answer takes. Do it before the transaction, or after it in transaction.on_commit() "
        "or a job.",
        OutsideCallWarning,
        stacklevel=3,
    )


def _databases() -> set[tuple[Any, ...]]:
    """Addresses of the project's databases: some drivers use Python's sockets."""
    found: set[tuple[Any, ...]] = set()
    for values in connections.settings.values():
        host, port = values.get("HOST"), values.get("PORT")
        if host and not host.startswith("/"):
            try:
                infos = socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM)
            except OSError:
                continue
            found |= {info[4][:2] for info in infos} | {(host, int(port or 0))}
    return found
