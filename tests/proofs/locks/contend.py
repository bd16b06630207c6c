"""python -m tests.proofs.locks.contend KIND PROCESSES SECONDS FILE: processes that want one key, all the time.

Each writes a line when it has the lock and one before it gives it back: event, process, fence, monotonic nanoseconds.
Appended by one write each, so the file has them in the order in which they happened.
"""

from __future__ import annotations

import os
import sys
import time

from tests.proofs.locks.kinds import holding, set_up

TTL_SECONDS = 120.0


def main(kind: str, processes: int, seconds: float, path: str) -> int:
    """Exit status 0 when every process came to its end."""
    set_up()
    # All start when the last one is there: then the pipe has no writer any more.
    gate, door = os.pipe()
    children = []
    for _ in range(processes):
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(door)
                os.read(gate, 1)
                contend(kind, time.monotonic() + seconds, path)
                status = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        children.append(child)
    os.close(door)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def contend(kind: str, ending: float, path: str) -> None:
    """Hold, and hold again; once at least, however late its turn comes on a busy machine."""
    out = os.open(path, os.O_APPEND | os.O_WRONLY | os.O_CREAT)
    held = False
    while not held or time.monotonic() < ending:
        with holding(kind, TTL_SECONDS) as lock:
            fence = getattr(lock, "fence", 0)
            for event in ("in", "out"):
                os.write(out, f"{event} {os.getpid()} {fence} {time.monotonic_ns()}\n".encode())
                # Long enough for another holder to be seen, if there were one.
                os.sched_yield()
        held = True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
