"""Statistics of queues: what waits and runs now, and what ended lately. snapshot() reads; the recorder counts."""

from jobqueue.stats.live import QueueStats, snapshot

__all__ = ["QueueStats", "snapshot"]
