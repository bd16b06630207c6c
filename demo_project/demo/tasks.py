"""Sample jobs for the admin pages."""

import time

from jobqueue import current_job, task


@task(queue_name="samples")
def add(a: int, b: int) -> int:
    """Succeeds."""
    return a + b


@task(queue_name="samples", max_attempts=3)
def fail(reason: str) -> None:
    """Fails every time: it is retried after about 5 and 10 seconds, then FAILED."""
    raise ValueError(reason)


@task(queue_name="samples")
def slow(seconds: float) -> str:
    """Runs for a while, renews its lease, and stops early when asked."""
    job = current_job()
    until = time.monotonic() + seconds
    while time.monotonic() < until and not job.should_stop:
        time.sleep(0.1)
    return "stopped early" if job.should_stop else "ran to its end"
