"""Why a job does not run, and why a queue does not move: explain_job() and explain_queue(), in words.

Reads only: a few statements by index seeks, whose cost does not grow with the table. Stands above the rooms whose state
it puts into words; imported by the admin and the commands. Runs in the process that calls it.
"""

from jobqueue.explain.explanation import Explanation
from jobqueue.explain.jobs import explain_job
from jobqueue.explain.queues import explain_queue

__all__ = ["Explanation", "explain_job", "explain_queue"]
