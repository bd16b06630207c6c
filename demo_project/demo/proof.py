"""A claim with the expected and the found value."""

from collections.abc import Sequence
from dataclasses import dataclass

from demo_project.demo.tables import table


@dataclass(frozen=True)
class Proof:
    """A claim that holds if `found` equals `expected`, or is at least that with `at_least`."""

    claim: str
    expected: object
    found: object
    at_least: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        if self.at_least is not None:
            return isinstance(self.found, int) and self.found >= self.at_least
        return self.expected == self.found


def as_table(proofs: Sequence[Proof]) -> str:
    """One line per proof."""
    rows = [(p.claim, str(p.expected), str(p.found), "yes" if p.holds else "NO") for p in proofs]
    return table(["proof", "expected", "found", "holds"], rows)
