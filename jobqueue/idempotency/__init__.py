"""Effects that happen once: for repeated requests, repeated messages, repeated jobs. See docs/howto/idempotency.md."""

from __future__ import annotations

from jobqueue.exceptions import InProgress, KeyReused
from jobqueue.idempotency.http import idempotent_view
from jobqueue.idempotency.once import Once, once

__all__ = ["InProgress", "KeyReused", "Once", "idempotent_view", "once"]
