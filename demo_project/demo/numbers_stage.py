"""The stage of the race for serial numbers: several processes sell the same numbers, by each strategy in turn."""

from collections.abc import Callable

from django.core.management.base import OutputWrapper
from django.db import connection

from demo_project.demo.giving_up import GaveUp, Pace, TimeUp
from demo_project.demo.progress import Progress
from demo_project.demo.proof import Proof
from demo_project.demo.redis_there import redis_missing
from demo_project.demo.sizes import sized
from demo_project.serials import race
from demo_project.serials.strategies import STRATEGIES, THINK_SECONDS

#: for sale, and on the slowest machine; `race_serials` sends twice as many requests for each
NUMBERS, NUMBERS_MIN, REQUESTS_PER_NUMBER = 1000, 80, 2.5
#: that buy, and on a machine on which less than half of the full size fits into the time
PROCESSES, PROCESSES_MIN = 8, 4
_ROW = "{:<13}  {:>12}  {:>7}  {}"


class NumbersStage:
    """One run: a race per strategy. `again`: from the part of the stage that is over to the share for the rest."""

    def __init__(self, out: OutputWrapper, share: float = 1.0, again: Callable[[float], float] | None = None) -> None:
        self.out = out
        self.share, self._again = share, again
        self.processes = PROCESSES if share >= 0.5 else PROCESSES_MIN
        self.verdicts: list[race.Verdict] = []
        without_redis = bool(redis_missing())
        self._runs = sum(not (found.needs_redis and without_redis) for found in STRATEGIES.values())
        self._progress = Progress(self._runs * self.shape.requests, "requests", out)
        self._pace = Pace(self._progress.total, "requests")
        self._sent = 0
        #: how many numbers the present race sells, and the last one, that of take, in the end
        self.numbers = self.shape.numbers

    @property
    def shape(self) -> race.Shape:
        """The size of the next race."""
        numbers = sized(NUMBERS, NUMBERS_MIN, self.share)
        return race.Shape(numbers, round(numbers * REQUESTS_PER_NUMBER), self.processes)

    def work(self) -> None:
        """Race, and show one line per strategy."""
        say = self._progress.say
        say(_ROW.format("strategy", "sold", "ms each", "verdict"))
        say(_ROW.format("-" * 13, "-" * 12, "-" * 7, "-" * 36))
        try:
            with self._progress.moving():
                for found in race.run(list(STRATEGIES), self.shape, next_shape=self._next, see=self._see):
                    self._ended(found)
        except TimeUp:
            done = sum(not verdict.not_run for verdict in self.verdicts)
            raise GaveUp(f"{done} of {self._runs} strategies had run; {self._pace.cause()}.") from None
        for note in self._notes():
            say(note)

    def proofs(self) -> list[Proof]:
        """What take sold, each once."""
        sold = next(verdict for verdict in self.verdicts if verdict.strategy == "take")
        return [
            Proof("serial numbers handed out by take", self.numbers, sold.handed_out),
            Proof("serial numbers issued twice", 0, sold.duplicates),
            Proof("serial numbers lost", 0, sold.unsold),
            Proof("requests that got two numbers", 0, sold.greedy),
        ]

    def _next(self) -> race.Shape:
        """The size of the next race: smaller, if those before have taken longer than was expected."""
        done = sum(not verdict.not_run for verdict in self.verdicts)
        if self._again is not None and done:
            self.share = min(self.share, self._again(done / self._runs))
        self.numbers = self.shape.numbers
        self._progress.total = self._pace.total = self._sent + (self._runs - done) * self.shape.requests
        return self.shape

    def _see(self, sent: int) -> None:
        self._pace.see(self._sent + sent)
        self._progress.show(self._sent + sent)

    def _ended(self, found: race.Verdict) -> None:
        self.verdicts.append(found)
        if found.not_run:
            self._progress.say(_ROW.format(found.strategy, "-", "-", found.text))
            return
        self._sent += self.shape.requests
        self._see(0)
        sold = f"{found.handed_out} of {self.numbers}"
        self._progress.say(_ROW.format(found.strategy, sold, f"{found.ms_per_number:.2f}", found.text))

    def _notes(self) -> list[str]:
        by_name = {verdict.strategy: verdict for verdict in self.verdicts}
        take = by_name["take"]
        kept = f"{take.greedy} got another number" if take.greedy else "each got the number that it had"
        found = [
            f"Each strategy but take computes for {THINK_SECONDS * 1000:g} ms between read and save.",
            f"{take.repeats} requests to take were sent a second time, as after a lost answer: {kept}.",
        ]
        if connection.vendor == "sqlite":
            twice = " and sells twice even here" if by_name["unsafe"].duplicates else ""
            found.append(
                "SQLite has no row locks: the row-lock strategies are right here because transactions begin IMMEDIATE, "
                f"so that there is one writer at a time. unsafe reads outside a transaction{twice}."
            )
        found.append("More columns, and more requests: python manage.py race_serials")
        return found
