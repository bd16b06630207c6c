"""The log of a trial outside of the database: a line for each start of a job, call of a producer, delivery of an event.

Lines are written at once with O_APPEND, so that their order is that of the writes, and kill -9 loses none.
"""

import json
import os
import time

VARIABLE = "JOBQUEUE_TEST_LOG"
#: what the lease locks of jobs last
LOCK_SECONDS = 3
#: the error of jobs whose failure is part of the load
MEANT = "meant to fail"


def note(event, **facts):
    """Append a line with the time and the process."""
    line = json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **facts}) + "\n"
    log = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(log, line.encode())
    finally:
        os.close(log)


def read(path):
    """All lines, in the order of the writes."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
