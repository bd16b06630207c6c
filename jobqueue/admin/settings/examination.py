"""A run of the doctor's checks for a page: those that ask only the database, for a limited time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.utils import translation

from jobqueue.doctor import Finding
from jobqueue.doctor.examination import check_all, in_order

#: no check begins later than this after the first one, and no SELECT of a check may run for longer than the second time
LIMIT_SECONDS, READ_SECONDS = 10.0, 2.0


@dataclass(frozen=True, slots=True)
class Examined:
    """What a run has found. The texts of findings and the titles of checks are English."""

    findings: list[Finding]  # errors first
    passed: list[str]  # titles of checks that found nothing
    left_out: list[str]  # titles of checks that were not run
    is_over: bool  # the time was over before all checks had begun


def examined(using: str) -> Examined:
    """Run the checks. Reads only; imports the tasks.py of all apps."""
    until, checked, is_over = time.monotonic() + LIMIT_SECONDS, [], False
    with translation.override(None):
        for one in check_all(using, beside=False, seconds=READ_SECONDS):
            checked.append(one)
            if time.monotonic() > until:
                is_over = True
                break
    passed = [one.check.title for one in checked if one.findings == []]
    return Examined(in_order(checked), passed, [one.check.title for one in checked if one.findings is None], is_over)
