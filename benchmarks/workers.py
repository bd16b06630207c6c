"""Start contestants as real processes, count committed finishes in the database, stop the processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Samples = list[tuple[float, int]]


def runworker(*options: str, processes: int = 1) -> list[str]:
    """The command of our worker."""
    base = [sys.executable, "manage.py", "runworker", "-v", "0", "--no-reload"]
    return [*base, "--processes", str(processes), *(options or ("--queues", "bench"))]


def reference(*options: str) -> list[str]:
    """The command of one reference worker."""
    return [sys.executable, "-m", "benchmarks.reference_worker", *options]


@contextmanager
def running(command: list[str], env: dict[str, str], *, count: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run `count` processes within the block, each in its own process group; end them with SIGTERM, then SIGKILL."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    with tempfile.TemporaryFile() as said:
        started = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True)
            for _ in range(count)
        ]
        try:
            yield started
        except BaseException:
            said.seek(max(0, said.seek(0, os.SEEK_END) - 3000))
            print(f"{command}:\n{said.read().decode(errors='replace')}", file=sys.stderr)
            raise
        finally:
            _stop(started)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Watch:
    """Samples of (time, finished jobs), until all jobs are finished or the time is over."""

    total: int
    seconds: float
    count: Callable[[], int]
    samples: Samples = field(default_factory=list)

    def until_done(self, processes: list[subprocess.Popen[bytes]], start_seconds: float = 120.0) -> Samples:
        """Count every 50 ms, or less often if counting is slow; the time starts with the first finish."""
        begun = time.monotonic()
        while True:
            before = time.monotonic()
            done = self.count()
            now = time.monotonic()
            self.samples.append((now, done))
            first = next((at for at, number in self.samples if number), None)
            if done >= self.total or (first and now - first > self.seconds):
                return self.samples
            if first is None and now - begun > start_seconds:
                raise RuntimeError(f"no job was finished within {start_seconds:g} s")
            if any(process.poll() is not None for process in processes):
                raise RuntimeError("a worker ended by itself")
            time.sleep(max(0.05, 20 * (now - before)))


def rate(samples: Samples, total: int) -> float | None:
    """Jobs a second from the first sample with a finish to the last one before all `total` jobs were finished."""
    busy = [sample for sample in samples if sample[1]]
    inner = [sample for sample in busy if sample[1] < total] or busy
    # The last sample is later than the end of the drain, so it is used only if the drain was very short.
    chosen = inner if len(inner) >= 3 else busy
    if len(chosen) < 2 and len(samples) > len(busy):
        chosen = [samples[len(samples) - len(busy) - 1], *chosen]
    (t0, n0), (t1, n1) = chosen[0], chosen[-1]
    return (n1 - n0) / (t1 - t0) if t1 > t0 and n1 > n0 else None
