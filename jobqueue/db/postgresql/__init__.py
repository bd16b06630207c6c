"""PostgreSQL 14 and later. Only `jobqueue.db` imports this package."""
