"""Statistics of queues: what waits and runs now, and what ended lately. snapshot() reads; the recorder counts."""

from jobqueue.stats.queues import QueueStats, snapshot

__all__ = ["QueueStats", "snapshot"]
