"""What a failure is: the cause class of an exception, its fingerprint, and its text as it is stored.

causes decides the class, by rules that name exception classes by their paths, and by the numbers and statuses of codes.
project has the rules of a project, for all tasks or for one. text has what is stored and logged, and the fingerprint by
which failures of the same kind are found. Imports no library and no database; used by transitions, workers and
commands.
"""

from jobqueue.failures.causes import classify
from jobqueue.failures.codes import FailureCause
from jobqueue.failures.text import (
    ERROR_BYTES,
    FINGERPRINT_CHARS,
    describe,
    dotted_path,
    fingerprint,
    is_permanent,
    project_trace,
    storable,
    summary,
)

__all__ = [
    "ERROR_BYTES",
    "FINGERPRINT_CHARS",
    "FailureCause",
    "classify",
    "describe",
    "dotted_path",
    "fingerprint",
    "is_permanent",
    "project_trace",
    "storable",
    "summary",
]
