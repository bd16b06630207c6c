"""jobqueue.otel."""
