"""A claim with the expected and the found value."""

from collections.abc import Sequence
from dataclasses import dataclass

from demo_project.demo.tables import table


@dataclass(frozen=True)
class Proof:
    """A claim that holds if `found` equals `expected`, or is in the bounds that `at_least` and `at_most` give."""

    claim: str
    expected: object
    found: object
    at_least: int | None = None
    at_most: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        if self.at_least is None and self.at_most is None:
            return self.expected == self.found
        if not isinstance(self.found, int):
            return False
        return (self.at_least is None or self.found >= self.at_least) and (
            self.at_most is None or self.found <= self.at_most
        )


def as_table(proofs: Sequence[Proof]) -> str:
    """One line per proof."""
    rows = [(p.claim, str(p.expected), str(p.found), "yes" if p.holds else "NO") for p in proofs]
    return table(["proof", "expected", "found", "holds"], rows)
