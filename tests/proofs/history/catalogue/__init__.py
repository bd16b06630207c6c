"""The places that are broken on purpose: what a tired programmer could write, and would lose, double or hide something.

Each file has those of some rooms. A mutant names its function, what is broken in it, and the tests that should notice.
"""

from __future__ import annotations

from tests.proofs.history.catalogue import (
    failures,
    gates,
    groups,
    innodb,
    postgres,
    shared,
    surroundings,
    telling,
    verbs,
)
from tests.proofs.history.catalogue.mutant import DATABASES, Mutant, NotThere

_FILES = (verbs, shared, gates, failures, groups, telling, surroundings, innodb, postgres)
MUTANTS = [one for file in _FILES for one in file.MUTANTS]

__all__ = ["DATABASES", "MUTANTS", "Mutant", "NotThere"]
