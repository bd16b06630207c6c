"""Adding jobs: INSERT only, in the caller's transaction. Imports ordering and wakeup, never the transitions."""
