"""Bulk verbs: one verb for all jobs that match a filter, recorded as a row of job_audit, and carried out in chunks.

filtering says which jobs, preview what would happen. recording has record() and stop(); carrying_out does the next
chunk, in the monitor process of workers (maintenance.bulk_runner). transitions and retention write the jobs.
"""

from jobqueue.bulk_verbs.filtering import matching
from jobqueue.bulk_verbs.recording import Who, record, record_done, stop

__all__ = ["Who", "matching", "record", "record_done", "stop"]
