"""The gate of a job, and the wait reasons that enqueue and the ordering of keys write.

Imports no model, so that enqueue() can be imported before the apps are ready.
"""

#: the gate of a job that waits for its turn among those of its ordering key, and its wait_reason
KEY_GATE = 1
WAITS = "waits for earlier jobs with its ordering key"
HALTED = "halted: an earlier job of its ordering key failed; resume() lets the key go on"
#: the wait_reason of a job whose enqueuer gave it a run_at
SCHEDULED = "scheduled"
