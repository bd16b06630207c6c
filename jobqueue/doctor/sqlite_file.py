"""Where the file of SQLite is: processes can share it on a local disk only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from django.db import connections

from jobqueue.db import vendor
from jobqueue.doctor.finding import Finding, Level

MOUNTS = Path("/proc/self/mounts")
#: file systems on which locks or shared memory of several hosts do not work as SQLite needs them
NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "ceph", "lustre", "9p", "afs", "gfs2")


def sqlite_file(using: str) -> Iterator[Finding]:
    """Checks memory_database and network_file."""
    file = vendor(using).set_up.values(connections[using]).get("file")
    if file is None:
        return
    if not file:
        yield Finding(
            Level.WARNING,
            "memory_database",
            "The queue is in memory: each process has a database of its own, so workers see no job of other processes.",
            "Give DATABASES a file as NAME. See docs/howto/sqlite.md.",
            {},
        )
        return
    mounted = file_system(file, MOUNTS)
    if mounted is not None and mounted[1].startswith(NETWORK):
        yield Finding(
            Level.ERROR,
            "network_file",
            f"The file {file} is on a network file system ({mounted[1]} at {mounted[0]}): the write-ahead log does not "
            "work there, and the file can be damaged.",
            "Move it to a local disk, or use a database server.",
            {"file": file, "mounted_at": mounted[0], "file_system": mounted[1]},
        )


def file_system(file: str, mounts: Path) -> tuple[str, str] | None:
    """Where the file system of a file is mounted, and its type. None where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    path = os.path.realpath(file)
    found = [(words[1].replace("\\040", " "), words[2]) for line in lines if len(words := line.split()) > 2]
    # If several file systems are mounted at one place, the last one counts.
    holds = [one for one in found if path == one[0] or path.startswith(one[0].rstrip("/") + "/")]
    return max(reversed(holds), key=lambda one: len(one[0]), default=None)
