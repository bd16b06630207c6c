"""The sub-command doctor: check the whole set-up, and print what to do about each finding."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from jobqueue.cli.arguments import NO_DATABASE
from jobqueue.cli.output import Result, Subcommand, aligned
from jobqueue.doctor import Finding, Level
from jobqueue.doctor.examination import Checked, run_checks
from jobqueue.doctor.tables import grants

#: the exit status if there is an error or a warning
FOUND_WRONG = 1


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--grants",
        metavar="ACCOUNT",
        help="print the GRANT statements that this account of workers needs; check nothing",
    )


def _doctor(using: str, given: dict[str, Any]) -> Result:
    if given["grants"] is not None:
        statements = grants(given["grants"], using)
        nobody = ["-- This database has no accounts: whoever may write the file may run workers."]
        return Result({"database": using, "grants": statements}, statements or nobody, is_script=True)
    examination = run_checks(using)
    checked, findings = examination.checked, examination.findings
    status = FOUND_WRONG if any(finding.is_bad for finding in findings) else 0
    if any(finding.id == "database_unreachable" for finding in findings):
        status = NO_DATABASE
    lines = _lines(checked, findings, every=given["verbosity"] > 1)
    return Result(_document(using, checked, findings), lines, status)


def _document(using: str, checked: Sequence[Checked], findings: Sequence[Finding]) -> dict[str, Any]:
    checks = [{"name": one.check.name, "title": one.check.title, "state": _state(one)} for one in checked]
    return {"database": using, "findings": [asdict(finding) for finding in findings], "checks": checks}


def _state(one: Checked) -> str:
    if one.findings is None:
        return "left out"
    return "findings" if one.findings else "passed"


def _lines(checked: Sequence[Checked], findings: Sequence[Finding], *, every: bool) -> Iterator[str]:
    rows = [row for finding in findings for row in _rows(finding)]
    if every:
        rows += [(_state(one), one.check.name, one.check.title) for one in checked if not one.findings]
    yield from aligned(rows) if rows else []
    left_out = sum(one.findings is None for one in checked)
    more = f"; {left_out} were left out" if left_out else ""
    yield f"{len(checked) - left_out} checks: {_counts(findings)}{more}"
    yield "Symptoms, and what to do: docs/howto/troubleshooting.md"


def _rows(finding: Finding) -> Iterator[tuple[str, str, str]]:
    yield finding.level, finding.id, finding.text
    yield "", "", f"  To do: {finding.fix}"


def _counts(findings: Sequence[Finding]) -> str:
    number = Counter(finding.level for finding in findings)
    bad = [f"{number[level]} {level}{'' if number[level] == 1 else 's'}" for level in (Level.ERROR, Level.WARNING)]
    return f"{', '.join(bad)}, {number[Level.INFO]} for information"


DOCTOR = Subcommand("Check the whole set-up, and print what to do about each finding.", _declare, _doctor)
