"""Folders with the code of one commit, and runs of pytest in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COLLECTION_FAILED = (2, 3, 4)


def git(*arguments: str) -> str:
    """What a git command in this repository prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def unpack(commit: str, folder: Path, *paths: str) -> None:
    """Put the files of `commit` (or only those below `paths`) into `folder`; what `paths` held before is removed."""
    for path in paths:
        shutil.rmtree(folder / path, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", commit, *paths], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


@dataclass(frozen=True)
class Case:
    """One test that ran: "passed", "failed" or "skipped", and the findings it is marked with."""

    test: str
    outcome: str
    findings: tuple[str, ...]


def run_tests(
    folder: Path, database: str, arguments: Sequence[str], *, timeout_seconds: float, short: bool = False
) -> list[Case] | None:
    """The tests that pytest ran in `folder`; None if it could not collect them. Raises subprocess.TimeoutExpired.

    They run at full size, or with `short` those that the short run has on this database.
    """
    report = Path(tempfile.mkdtemp(prefix="jobqueue-report-")) / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-o", "junit_family=xunit1", f"--junitxml={report}", *arguments]
    env = {**os.environ, "JOBQUEUE_TEST_DB": database, "PYTHONPATH": str(folder)}
    for name in ("JOBQUEUE_PROVE", "JOBQUEUE_PROVE_OUT", "JOBQUEUE_TEST_FULL", "JOBQUEUE_TEST_RUN"):
        env.pop(name, None)
    env |= {"JOBQUEUE_TEST_RUN": "short"} if short else {"JOBQUEUE_TEST_FULL": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, timeout=timeout_seconds, capture_output=True, text=True, check=False
    )
    if done.returncode in COLLECTION_FAILED or not report.exists():
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        return None
    return [_case(element) for element in ET.parse(report).iter("testcase")]


def _case(element: ET.Element) -> Case:
    children = {child.tag for child in element}
    outcome = "failed" if children & {"failure", "error"} else "skipped" if "skipped" in children else "passed"
    findings = tuple(p.get("value", "") for p in element.iter("property") if p.get("name") == "finding")
    return Case(f"{element.get('file')}::{element.get('name')}", outcome, findings)
