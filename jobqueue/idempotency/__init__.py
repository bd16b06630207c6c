"""Effects that happen once, for repeated requests, messages and jobs. See docs/howto/idempotency.md.

once() runs in the caller's thread and stores its record in the caller's transaction; idempotent_view() is once() for
the Idempotency-Key header.
"""

from __future__ import annotations

from jobqueue.exceptions import InProgress, KeyReused
from jobqueue.idempotency.http import idempotent_view
from jobqueue.idempotency.once import Once, once

__all__ = ["InProgress", "KeyReused", "Once", "idempotent_view", "once"]
