"""The only writers of job state: one verb per arrow of the state machine, each guarded in its WHERE clause."""

from jobqueue.transitions.acking import ack, ack_many
from jobqueue.transitions.claiming.claimer import claim
from jobqueue.transitions.failing import fail, fail_many
from jobqueue.transitions.leases import Lease, heartbeat, heartbeat_many, held_by
from jobqueue.transitions.operator import cancel, discard, release_held, retry
from jobqueue.transitions.reaping import Reaped, reap
from jobqueue.transitions.resuming import resume
from jobqueue.transitions.settling import cancel_held, release, release_many, snooze, snooze_many

__all__ = [
    "Lease",
    "Reaped",
    "ack",
    "ack_many",
    "cancel",
    "cancel_held",
    "claim",
    "discard",
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
    "snooze",
    "snooze_many",
]
