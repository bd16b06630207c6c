"""Flow control: pauses and drains of queues and tasks, limits of what runs and how fast it starts, circuit breakers.

All functions run in the caller's transaction and work in all processes within a second of its commit.
"""

from jobqueue.base.validation import KEEP
from jobqueue.flow.breakers import Breaker, breaker
from jobqueue.flow.rules import Limit, Paused, clear_limit, drain, limits, pause, paused, resume, set_limit

__all__ = [
    "KEEP",
    "Breaker",
    "Limit",
    "Paused",
    "breaker",
    "clear_limit",
    "drain",
    "limits",
    "pause",
    "paused",
    "resume",
    "set_limit",
]
