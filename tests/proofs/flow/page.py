"""python -m tests.proofs.flow.page BASE DB FILE...: the page of these proofs, as tests.proofs.failures.page."""

from __future__ import annotations

import sys

from tests.proofs.failures.page import print_with_statements

if __name__ == "__main__":
    print_with_statements("flow", "was flow control", *sys.argv[1:])
