"""The files, and what a job finds out about a file; without a database."""

import email
import hashlib
import http
import json
from pathlib import Path
from typing import NamedTuple

import django

ENOUGH_FILES = 500
#: rounds of hashing: a few milliseconds per file, so that a worker can be killed during a job
ROUNDS = 300


class Found(NamedTuple):
    """What was found in a file."""

    lines: int
    words: int
    sha256: str


def all_paths() -> list[str]:
    """Every .py file of the installed Django package, by its path below the folder that holds the package."""
    found = _python_files(Path(django.__file__).parent)
    if len(found) < ENOUGH_FILES:
        for module in (json, http, email):
            found += _python_files(Path(module.__file__ or "").parent)
    return found


def examine(path: str) -> Found:
    """Count lines and words, and hash the content in ROUNDS rounds."""
    content = _locate(path).read_bytes()
    digest = hashlib.sha256(content)
    for _ in range(ROUNDS):
        digest = hashlib.sha256(digest.digest() + content)
    return Found(content.count(b"\n"), len(content.split()), digest.hexdigest())


def _python_files(package: Path) -> list[str]:
    return sorted(path.relative_to(package.parent).as_posix() for path in package.rglob("*.py"))


def _locate(path: str) -> Path:
    roots = {Path(module.__file__ or "").parent.parent for module in (django, json)}
    return next(root / path for root in roots if (root / path).is_file())
