"""make bench: the queue compared with hand-written SQL and other queues, on the same servers in the same run."""
