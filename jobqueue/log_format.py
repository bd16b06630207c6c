"""Log lines about jobs, written by receivers of signals, and the formatters of the commands."""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from typing import Any

from django.core.management.color import Style, no_style

from jobqueue.base.durations import format_seconds
from jobqueue.failures import project_trace, storable, summary
from jobqueue.failures.text import message
from jobqueue.masking import mask_text
from jobqueue.requested import BY_OUTCOME
from jobqueue.signals import RunOutcome, attempt_ended, job_reaped, lease_lost

jobs = logging.getLogger("jobqueue.jobs")
logger = logging.getLogger("jobqueue")

#: log level of each outcome; INFO for others
_LEVELS = {
    RunOutcome.RETRY: logging.WARNING,
    RunOutcome.PARKED: logging.WARNING,
    RunOutcome.LOST: logging.WARNING,
    RunOutcome.DEAD: logging.ERROR,
}


def connect() -> None:
    """Connect the receivers that write log lines in every process."""
    lease_lost.connect(on_lease_lost, dispatch_uid="jobqueue.log")
    job_reaped.connect(on_job_reaped, dispatch_uid="jobqueue.log")


def connect_jobs(*, tracebacks: bool = False) -> None:
    """Connect the receiver that writes a line per run. Only runworker does this, because it costs throughput.

    `tracebacks`: below the line of each failed attempt, not only of a job's last one.
    """
    receiver = partial(on_attempt_ended, tracebacks=tracebacks)
    attempt_ended.connect(receiver, weak=False, dispatch_uid="jobqueue.log")


def on_attempt_ended(sender: type, *, tracebacks: bool = False, **facts: Any) -> None:
    """Log a line such as: ok    mail  emails.tasks.send_welcome  #81237  try 1/5  wait 38ms  ran 212ms"""
    outcome, error = facts["outcome"], facts["error"]
    level = _LEVELS.get(outcome, logging.INFO)
    if not jobs.isEnabledFor(level):
        return
    line = (
        f"{outcome:<6}  {facts['queue']}  {facts['name']}  #{facts['job_id']}  "
        f"try {facts['attempt']}/{facts['max_attempts']}  wait {format_seconds(facts['wait_seconds'])}  "
        f"ran {format_seconds(facts['run_seconds'])}{_next(facts)}"
    )
    requested = BY_OUTCOME.get(outcome)
    if error is not None and (requested is None or not requested.again):
        line += f"  {mask_text(summary(error) if requested is None else message(error))}"
    extra = {
        "event": outcome,
        "job_id": facts["job_id"],
        "queue": facts["queue"],
        "handler": facts["name"],
        "attempt": facts["attempt"],
        "duration_ms": round(facts["run_seconds"] * 1000, 3),
    }
    if facts.get("delay_seconds") is not None:
        extra["delay_seconds"] = round(facts["delay_seconds"], 3)
    record = jobs.makeRecord(jobs.name, level, __file__, 0, "%s", (one_line(line),), None, extra=extra)
    if error is not None and (outcome == RunOutcome.DEAD or (tracebacks and outcome == RunOutcome.RETRY)):
        # Not exc_info: the formatters of a project would print the frames of this package too.
        record.exc_text = mask_text(project_trace(error))
    jobs.handle(record)


def _next(facts: dict[str, Any]) -> str:
    """The end of the line of a run that has not ended the job well."""
    if facts["outcome"] == RunOutcome.DEAD:
        return "  no attempts left" if facts["attempt"] >= facts["max_attempts"] else "  not retried"
    delay = facts.get("delay_seconds")
    return "" if delay is None else f"  again in {format_seconds(delay)}"


def on_lease_lost(sender: type, **facts: Any) -> None:
    """Log that a former holder of a lease was refused."""
    logger.warning(
        "job %d: the %s of %s was refused because its lease had ended; another holder may have the job now",
        facts["job_id"],
        facts["verb"],
        one_line(facts["worker"]),
        extra={"event": "lease_lost", "job_id": facts["job_id"], "queue": facts["queue"]},
    )


def on_job_reaped(sender: type, **facts: Any) -> None:
    logger.info(
        "job %d: the lease of %s expired in attempt %d",
        facts["job_id"],
        one_line(facts["worker"]),
        facts["attempt"],
        extra={"event": "reaped", "job_id": facts["job_id"], "queue": facts["queue"]},
    )


def one_line(text: str) -> str:
    """`text` without line breaks and control characters, so that names and messages cannot forge a log line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in storable(text, 2000))


def count_of(number: int, noun: str) -> str:
    """A number with its noun: "1 job", "2 processes"."""
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural}"


def _told(record: logging.LogRecord) -> str:
    """The message: that of a trouble may quote an error or an address, so its secrets are masked."""
    text = record.getMessage()
    return text if (record.levelno or 0) < logging.WARNING else mask_text(text)


class TextFormatter(logging.Formatter):
    """Lines such as "12:01:07.412 message", coloured by level if `style` is given; a traceback is indented below."""

    def __init__(self, style: Style | None = None) -> None:
        super().__init__("%(message)s")
        found: Any = style or no_style()
        self._paint = {logging.ERROR: found.ERROR, logging.WARNING: found.WARNING}

    def formatException(self, ei: Any) -> str:
        return mask_text(super().formatException(ei))

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _told(record)

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d} "
        first, *rest = super().format(record).split("\n")
        paint = self._paint.get(record.levelno)
        # Indented, so that no text of an error can pass for a line of the log.
        below = [f"{' ' * len(stamp)}{one_line(text)}".rstrip() for text in rest]
        return "\n".join([stamp + (paint(first) if paint else first), *below])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, traceback and the extra KEYS that the record has."""

    KEYS = ("event", "job_id", "queue", "handler", "attempt", "worker", "duration_ms", "delay_seconds")

    def formatException(self, ei: Any) -> str:
        return mask_text(super().formatException(ei))

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _told(record),
        }
        fields |= {key: getattr(record, key) for key in self.KEYS if hasattr(record, key)}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["traceback"] = record.exc_text
        return json.dumps(fields, ensure_ascii=False, default=str)


class WithoutLogger(logging.Filter):
    """A filter that drops the records of one logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name != self.name
