"""The only writers of job state: one verb per arrow of the state machine, each guarded in its WHERE clause.

The states are models.Job.Status. A job becomes PROCESSING in claiming/. The holder of its lease keeps it in renewing,
and ends it in acking (DONE), failing (READY or FAILED) or releasing (given back, without an attempt). reaping takes it
from a holder whose lease ran out. operator has what people do: cancel, discard, retry, run again, resume, and a longer
lease; by_filter does that to many jobs, and editing changes one that waits. Every verb runs through verb.run_verb().
Imported by context, tasks, workers, maintenance, admin and commands; runs in the process that calls it.
"""

from jobqueue.transitions.acking import ack, ack_many
from jobqueue.transitions.by_filter import cancel_many, discard_many, retry_many
from jobqueue.transitions.claiming.claimer import claim
from jobqueue.transitions.editing import edit
from jobqueue.transitions.failing import fail, fail_many
from jobqueue.transitions.leases import Lease, held_by
from jobqueue.transitions.operator import cancel, discard, extend_held, release_held, resume, retry, run_again
from jobqueue.transitions.reaping import Reaped, reap
from jobqueue.transitions.releasing import cancel_held, release, release_many, snooze, snooze_many
from jobqueue.transitions.renewing import heartbeat, heartbeat_many

__all__ = [
    "Lease",
    "Reaped",
    "ack",
    "ack_many",
    "cancel",
    "cancel_held",
    "cancel_many",
    "claim",
    "discard",
    "discard_many",
    "edit",
    "extend_held",
    "fail",
    "fail_many",
    "heartbeat",
    "heartbeat_many",
    "held_by",
    "reap",
    "release",
    "release_held",
    "release_many",
    "resume",
    "retry",
    "retry_many",
    "run_again",
    "snooze",
    "snooze_many",
]
