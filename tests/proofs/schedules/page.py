"""python -m tests.proofs.schedules.page DB FILE...: the page of these proofs from the figures in FILEs.

Parts that are missing because they failed or were broken off are not in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.proofs.report import print_page


def main(db: str, *files: str) -> None:
    """Print the page."""
    paths = [Path(name) for name in files if not name.endswith(".part")]
    print_page("schedules", [json.loads(line) for path in paths for line in path.open()], db)


if __name__ == "__main__":
    main(*sys.argv[1:])
