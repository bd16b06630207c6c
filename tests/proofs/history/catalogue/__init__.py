"""The places that are broken on purpose: what a tired programmer could write, and would lose, double or hide something.

Each file has those of some rooms. A mutant names its function, what is broken in it, and the tests that should notice.
"""

from __future__ import annotations

from tests.proofs.history.catalogue import failures, gates, groups, innodb, postgres, shared, telling, verbs
from tests.proofs.history.catalogue.mutant import DATABASES, Mutant, NotThere

MUTANTS = [one for file in (verbs, shared, gates, failures, groups, telling, innodb, postgres) for one in file.MUTANTS]

__all__ = ["DATABASES", "MUTANTS", "Mutant", "NotThere"]
