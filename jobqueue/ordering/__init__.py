"""Ordering keys: jobs of one queue and key run strictly one after another.

The producer appends jobs to the lane of their key; the transitions call promote.promote_next() after every change that
may free the next job of a key. Imported by both, and by maintenance, which sweeps. Runs in the process that calls it.
"""

# These need no model, so that enqueue() can be imported before the apps are ready.

#: the gate of a job that waits for its turn among those of its ordering key, and its wait_reason
KEY_GATE = 1
WAITS = "waits for earlier jobs with its ordering key"
HALTED = "halted: an earlier job of its ordering key failed; resume() lets the key go on"
#: the wait_reason of a job that was enqueued with a run_at
SCHEDULED = "scheduled"
