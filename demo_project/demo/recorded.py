"""The races that `make prove ISSUE=demo` has run, from races.json, which tests/proofs/demo/shown.py writes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from demo_project.auction import report as auction_report
from demo_project.auction.race import Verdict as AuctionVerdict
from demo_project.serials import report as serials_report
from demo_project.serials.race import Verdict as SerialsVerdict

FILE = Path(__file__).with_name("races.json")
TITLES = {"serials": "Serial numbers", "auction": "The auction"}


@dataclass(frozen=True)
class Run:
    """One race on one database."""

    race: str  # serials or auction
    vendor: str  # as `make prove DB=` names it
    database: str
    size: str
    command: str  # the command that ran
    made_by: str  # the command of `make prove`
    commit: str
    date: str
    strategies: tuple[dict[str, object], ...]

    @property
    def source(self) -> str:
        """Where the figures come from."""
        return f"{self.made_by}, commit {self.commit}, {self.date}"

    @property
    def title(self) -> str:
        """The race, its size and its database."""
        return f"{TITLES[self.race]}: {self.size}, {self.database}"

    @property
    def head(self) -> Sequence[str]:
        """The columns of the table."""
        return serials_report.HEAD if self.race == "serials" else auction_report.HEAD

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        if self.race == "serials":
            lines = [serials_report.line(verdict) for verdict in self._serials()]
        else:
            lines = [auction_report.line(verdict) for verdict in self._auction()]
        return [[str(cell) for cell in line] for line in lines]

    @property
    def svg(self) -> str:
        """The chart, with the source of its figures below."""
        if self.race == "serials":
            return serials_report.as_svg(self.title, self._serials(), foot=self.source)
        return auction_report.as_svg(self.title, self._auction(), foot=self.source)

    def _serials(self) -> list[SerialsVerdict]:
        return [SerialsVerdict.from_json(found) for found in self.strategies]

    def _auction(self) -> list[AuctionVerdict]:
        return [AuctionVerdict.from_json(found) for found in self.strategies]


@cache
def recorded() -> tuple[Run, ...]:
    """The recorded races; none if `make prove ISSUE=demo` has not run yet."""
    return read(json.loads(FILE.read_text())) if FILE.exists() else ()


def read(found: dict[str, list[dict[str, object]]]) -> tuple[Run, ...]:
    """The runs in the content of races.json."""
    return tuple(Run(**{**run, "strategies": tuple(run["strategies"])}) for run in found["runs"])


def apart(race: str) -> str:
    """A sentence below the figures of a live race: what they are not."""
    found = next((run for run in recorded() if run.race == race), None)
    here = "These are the figures of this run, on this machine."
    return f"{here} Recorded ones ({found.source}) are in docs/proof/demo.md." if found else here
