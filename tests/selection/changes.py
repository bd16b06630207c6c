"""Which files the working tree and the newest commits change."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.selection.statement_map import ROOT


def changed_files(root: Path = ROOT) -> list[str]:
    """The files that differ from origin/main, or from the commit before the last one if that is origin/main."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode == 0 else []

    head, base = git("rev-parse", "HEAD"), git("merge-base", "HEAD", "origin/main")
    since = base if base and base != head else git("rev-parse", "HEAD^")
    return git("diff", "--name-only", *(since or head)) + git("ls-files", "--others", "--exclude-standard")
