"""A file of 16 bytes per started job: its number and the machine's monotonic clock. Needs only Python."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

_RECORD = struct.Struct("<qd")
_open: dict[str, int] = {}


def effect(number: int) -> None:
    """Append one record; takes about two microseconds."""
    path = os.environ["BENCH_EFFECTS"]
    if path not in _open:
        _open[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_open[path], _RECORD.pack(number, time.monotonic()))


def count(path: str | None = None) -> int:
    """The number of jobs that have started."""
    try:
        return os.stat(path or os.environ["BENCH_EFFECTS"]).st_size // _RECORD.size
    except FileNotFoundError:
        return 0


def read(path: Path) -> dict[int, float]:
    """The first start of each job."""
    found: dict[int, float] = {}
    data = path.read_bytes() if path.exists() else b""
    for number, started in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
        found.setdefault(number, started)
    return found
