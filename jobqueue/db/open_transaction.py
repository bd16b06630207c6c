"""Whether a caller's transaction is open."""

from __future__ import annotations

from django.db import connections


def in_open_transaction(using: str) -> bool:
    """Whether this thread is inside transaction.atomic() on `using`; a test case's own wrapper does not count."""
    blocks = connections[using].atomic_blocks
    return bool(blocks) and not getattr(blocks[-1], "_from_testcase", False)
