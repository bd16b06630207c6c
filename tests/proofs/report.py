"""python -m tests.proofs.report NAME FIGURES [DB]: the figures of a proof run as a page."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


def main(name: str, figures: str, db: str = "") -> None:
    """Print the page."""
    lines = [json.loads(line) for line in Path(figures).read_text().splitlines()]
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"# Proof: {name}\n")
    command = f"make prove ISSUE={name}" + (f" DB={db}" if db else "")
    print(f"Command: `{command}`, commit `{commit}`, Python {platform.python_version()}, ", end="")
    print(f"{platform.system()} on {platform.machine()}.\n")
    print("Each row is what a test measured while it held; a test that fails writes no row. The tests are in")
    print("`tests/proofs/` and run in short form with every `make test`.\n")
    groups = defaultdict(list)
    for line in lines:
        groups[line.pop("says")].append(line)
    for says, rows in groups.items():
        print(f"## {says}\n")
        keys = list(dict.fromkeys(key for row in rows for key in row if key not in ("test", "on")))
        print("| database | " + " | ".join(keys) + " |")
        print("| --- |" + " --- |" * len(keys))
        for row in rows:
            print(f"| {row['on']} | " + " | ".join(str(row.get(key, "-")) for key in keys) + " |")
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
