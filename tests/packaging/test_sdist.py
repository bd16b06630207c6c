"""What the sdist has: all that git has, so that every target of the Makefile works in it, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.patience import patient

ROOT = Path(__file__).parents[2]
IS_CLONE = (ROOT / ".git").exists()
#: what a builder writes into each sdist
WRITTEN = "PKG-INFO"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of an unpacked sdist, which is no clone."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patient(), check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def listed(*options: str) -> set[str]:
    """The files that git lists, without those that were deleted."""
    command = ["git", "ls-files", "-z", *options]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return {name for name in names if name and (ROOT / name).is_file()}


def make(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    command, limit = ["make", target], patient()
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit, check=False)


@pytest.mark.skipif(not IS_CLONE, reason="git is what it is compared with")
def test_it_has_every_file_of_the_repository_and_no_other(unpacked):
    found = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    # What is not ignored may be added to git next.
    assert listed("--cached") - found == set()
    assert found - listed("--cached", "--others", "--exclude-standard") == {WRITTEN}


def test_what_the_makefile_calls_is_in_it(unpacked):
    listed = make(unpacked, "help")
    targets = re.findall(r"^  make ([a-z-]+)", listed.stdout, re.MULTILINE)
    assert {"demo", "serve", "venv", "check", "test", "lint", "bench", "prove", "clean"} <= set(targets)
    scripts = re.findall(r"scripts/\w+\.sh", (unpacked / "Makefile").read_text())
    assert [name for name in scripts if not (unpacked / name).exists()] == []


@pytest.mark.parametrize("target", ["bench-check", "prove", "proofs", "release-check"])
def test_a_target_that_compares_commits_says_that_it_needs_a_clone(unpacked, target):
    done = make(unpacked, target)
    assert done.returncode != 0
    assert re.search(rf"^make {target} .+, so it needs git and a clone of the repository\.", done.stderr, re.MULTILINE)
    assert not (unpacked / ".venv").exists(), "nothing is installed before that"


def test_the_metadata_names_the_licence_and_its_file_as_spdx_does(unpacked):
    head = (unpacked / WRITTEN).read_text().partition("\n\n")[0]
    for line in ("License-Expression: BSD-3-Clause", "License-File: LICENSE", "Author: The jobqueue maintainers"):
        assert line in head.splitlines()
    assert "License ::" not in head, "PEP 639 forbids both"
