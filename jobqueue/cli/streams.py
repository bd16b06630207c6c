"""Standard streams that were closed by whoever started the command."""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Give descriptors 0, 1 and 2 to /dev/null where they are closed.

    Else the next socket gets one of these numbers, and a library that complains on stderr writes into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the one just found missing.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
