"""The system checks of the package, as `check --database` runs them, and the imports that they need."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings as django_settings
from django.core import checks

from jobqueue.checks import server_problems
from jobqueue.doctor.finding import Finding, Level
from jobqueue.tasks import registry

_KINDS = {"E": Level.ERROR, "W": Level.WARNING, "I": Level.INFO}
#: the server's name is no finding; the clocks and the indexes have checks of their own here
_LEFT_OUT = {"I010", "W024", "E012"}


def task_modules(using: str) -> Iterator[Finding]:
    """task_module_failed. Import first: most other checks are about what tasks.py has."""
    list(registry.discover())
    if files := sorted(registry.failed_files()):
        yield Finding(
            Level.ERROR,
            "task_module_failed",
            "A tasks.py cannot be imported, so workers with this code do not start. The log of this command has the "
            "traceback.",
            "Correct the error in the last file of the traceback that is yours.",
            {"files": list(files)},
        )


def settings(using: str) -> Iterator[Finding]:
    """The checks of settings, tasks, routes, schedules and nested retries, without those that are silenced."""
    for message in checks.run_checks(tags=["jobqueue"]):
        if not message.is_silenced():
            yield Finding(
                _level(message), str(message.id), message.msg, message.hint or "See docs/reference/checks.md.", {}
            )


def server(using: str) -> Iterator[Finding]:
    """The checks that ask the server."""
    for code, text, hint in server_problems(using):
        name = f"jobqueue.{code}"
        if code not in _LEFT_OUT and name not in django_settings.SILENCED_SYSTEM_CHECKS:
            yield Finding(_KINDS[code[0]], name, text, hint, {})


def _level(message: checks.CheckMessage) -> Level:
    if message.level >= checks.ERROR:
        return Level.ERROR
    return Level.WARNING if message.level >= checks.WARNING else Level.INFO
