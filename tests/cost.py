"""python -m tests.cost COMMAND...: run it, then print its wall time and the processor time of all that it started.

Servers and workers that outlive their parents count, too: they become children of this process, which waits for them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """The exit status of the command."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    process = subprocess.Popen(command)
    # Ctrl-C reaches the command, too, which takes its servers down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = seconds = None
    with suppress(ChildProcessError):
        while True:
            pid, ended = os.wait()
            if pid == process.pid:
                status = os.waitstatus_to_exitcode(ended)
                seconds = time.monotonic() - begun
                process.returncode = status
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"took {seconds:.0f} s, and {used.ru_utime + used.ru_stime:.0f} s of processor time", flush=True)
    return status if status is not None and status >= 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
