"""python -m tests.proofs.parts_page NAME DB FILE...: the page of proofs that have parts, from the figures in FILEs.

Parts that are missing because they failed or were broken off are not in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.proofs.report import print_page


def main(name: str, db: str, *files: str) -> None:
    """Print the page."""
    paths = [Path(file) for file in files if not file.endswith(".part")]
    print_page(name, [json.loads(line) for path in paths for line in path.open()], db)


if __name__ == "__main__":
    main(*sys.argv[1:])
