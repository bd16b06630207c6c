"""Source archives as PyPI publishes them, kept unpacked in .upstream/ for the next run. Nothing of theirs is ours."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".upstream"


def unpacked(requirement: str, inside: str = "") -> Path:
    """The folder of `name==version` with what its archive has below `inside`; pip downloads it the first time.

    Raises RuntimeError with what pip says.
    """
    folder = CACHE / requirement
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--dest", scratch]
            # Only read here, so this Python may be too old to run it.
            options.append("--ignore-requires-python")
            command = [sys.executable, "-m", "pip", "download", *options, requirement]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"pip could not download the source of {requirement}:\n{done.stderr[-2000:]}")
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                names = [member for member in tar if member.name.partition("/")[2].startswith(inside)]
                tar.extractall(scratch, members=names, filter="data")
            (top,) = (path for path in Path(scratch).iterdir() if path.is_dir())
            top.rename(folder)
    return folder
