"""make bench: the queue beside hand-written SQL and other queues, on the same servers in the same run."""
