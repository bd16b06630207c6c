"""Adds jobs: INSERT only, in the caller's transaction.

Imports ordering and wakeup, never the transitions. Imported by the public package, the backend and the outbox; runs in
any process that enqueues. life has what the options of a job keep of its life, from the enqueue on.
"""
