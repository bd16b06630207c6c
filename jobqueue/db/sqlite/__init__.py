"""SQLite 3.35 and later, the embedded default: one writer at a time. Only `jobqueue.db` imports this package."""
