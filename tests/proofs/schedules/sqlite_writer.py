"""python -m tests.proofs.schedules.sqlite_writer FILE: the longest transaction that held SQLite's write lock.

Looks until its input ends, and prints seconds. In a process of its own, because a process that closes any descriptor of
the index of the write-ahead log loses the locks that it holds there.

The write lock is byte 120 of FILE-shm, and the number of the commits is the third word of that file
(https://www.sqlite.org/walformat.html, sections 2.1 and 2.3). A transaction is seen as one process that holds the lock
while the number stays the same.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from pathlib import Path

#: between two looks; a transaction may have been longer than it was seen by twice as much
LOOK_SECONDS = 0.01
WRITE_LOCK = "120"
COMMITS_AT, COMMITS = 8, "=I"


def holder(inode: str) -> str | None:
    """The process that holds the write lock of the index with this inode."""
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "->" not in fields and fields[5].endswith(f":{inode}") and fields[3] == "WRITE":
            first, last = fields[6], fields[7]
            if int(first) <= int(WRITE_LOCK) and (last == "EOF" or int(WRITE_LOCK) <= int(last)):
                return fields[4]
    return None


def longest(file: str, over: threading.Event) -> float:
    """Seconds of the longest one until `over` is set."""
    found = 0.0
    seen, since = None, 0.0
    with open(f"{file}-shm", "rb") as index:
        inode = str(os.fstat(index.fileno()).st_ino)
        while not over.wait(LOOK_SECONDS):
            process = holder(inode)
            (commits,) = struct.unpack(COMMITS, os.pread(index.fileno(), struct.calcsize(COMMITS), COMMITS_AT))
            now = time.monotonic()
            if (process, commits) != seen:
                seen, since = (process, commits), now
            elif process is not None:
                found = max(found, now - since)
    return found


if __name__ == "__main__":
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print(longest(sys.argv[1], ended))
