"""python -m tests.proofs.fresh_clone: the two commands of the README, from nothing, twice; what is committed counts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.proofs.figures import write
from tests.proofs.model import ROOT

SAYS = "make demo on a machine with Python, git and make"


def main() -> int:
    """The status of the first run that fails."""
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    with tempfile.TemporaryDirectory(prefix="jobqueue-clone-") as name:
        clone = Path(name, "jobqueue")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for run in ("first", "second"):
            begun = time.monotonic()
            command = ["make", "--no-print-directory", "demo"]
            done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
                return done.returncode
            (proofs,) = (line for line in done.stdout.splitlines() if "proofs hold" in line)
            seconds = round(time.monotonic() - begun)
            write(SAYS, "sqlite", [{"which run": run, "seconds with set-up": seconds, "proofs": proofs}])
    return 0


if __name__ == "__main__":
    sys.exit(main())
