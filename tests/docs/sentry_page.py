"""What docs/howto/sentry.md sends to Sentry: kept here instead, and compared with what the page says."""

from __future__ import annotations

import functools
import os
from typing import Any

import sentry_sdk
from sentry_sdk.integrations import logging as sentry_logging
from sentry_sdk.transport import Transport

from jobqueue.signals import attempt_ended, worker_stopped

_INIT = sentry_sdk.init


class Collect(Transport):
    """Keeps what would be sent."""

    envelopes: list[Any] = []

    def capture_envelope(self, envelope: Any) -> None:
        """Called by Sentry."""
        self.envelopes.append(envelope)


def begin() -> None:
    """Let the page start a Sentry that sends nothing."""
    os.environ["SENTRY_DSN"] = "http://key@127.0.0.1:9/1"
    Collect.envelopes.clear()
    # The integrations patch Django for good, so the test of the worker process has them and this one has not.
    sentry_sdk.init = functools.partial(
        _INIT, transport=Collect, default_integrations=False, auto_enabling_integrations=False
    )


def check() -> None:
    """One failed run of orders.tasks.charge was sent, without its argument and its secret."""
    (envelope,) = Collect.envelopes
    event = envelope.get_event()
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "the bank refused token=********")
    assert error["stacktrace"]["frames"][-1]["function"] == "charge"
    assert event["level"] == "error"
    assert event["tags"] == {"queue": "default", "task": "orders.tasks.charge"}
    assert event["contexts"]["job"]["attempt"] == 1
    assert "4242" not in str(event)


def end(reporting: Any) -> None:
    """Undo what the page has set up; `reporting` is its module of receivers."""
    attempt_ended.disconnect(reporting.report)
    worker_stopped.disconnect(reporting.send_the_rest)
    sentry_sdk.init = _INIT
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.Scope.get_global_scope().set_client(None)
    sentry_logging._IGNORED_LOGGERS -= {"jobqueue.jobs", "django.tasks", "django_tasks"}
    del os.environ["SENTRY_DSN"]
