"""What a failure is: the cause class of an exception, its fingerprint, and its text as it is stored.

causes decides the class. Its rules name classes by their paths as text (known), and ask for numbers where a class says
too little: of databases (database), of HTTP and other services (services), of the operating system (system). project
has the rules of a project, for all tasks or for one. grouping makes the fingerprint by which failures of the same kind
are found, text what is stored and logged. Imports no library and no database; used by transitions, workers, commands.
"""

from jobqueue.failures.causes import classify
from jobqueue.failures.grouping import FINGERPRINT_CHARS, fingerprint
from jobqueue.failures.text import (
    ERROR_BYTES,
    describe,
    dotted_path,
    is_permanent,
    project_trace,
    storable,
    summary,
)
from jobqueue.failures.vocabulary import FailureCause

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
