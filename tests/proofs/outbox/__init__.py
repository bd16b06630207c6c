"""The outbox under kills and pauses; two processes with one idempotency key."""
