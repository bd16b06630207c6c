"""Why a job does not run, a queue does not move, or due jobs wait at all, in words.

explain_job(), explain_queue() and explain_backlog(). Reads only: statements by index seeks, whose cost does not grow
with the table. Stands above the rooms whose state it puts into words; imported by the admin and the commands. Runs in
the process that calls it.
"""

from jobqueue.explain.backlog import explain_backlog
from jobqueue.explain.explanation import Explanation
from jobqueue.explain.jobs import explain_job, explain_queue

__all__ = ["Explanation", "explain_backlog", "explain_job", "explain_queue"]
