"""Calls that raise real exceptions: of libraries, of Python, of this system and of the databases, with their causes.

tests/failures classifies what each raises; the proof of failures runs each as a job of a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """What the calls meet: local servers, a port on which nobody listens, and a job."""

    url: str
    secure_url: str
    closed_port: int
    job_id: int | None = None


@dataclass(frozen=True)
class Real:
    """A call that raises, and the cause that its exception must have; `kind` is the class, where it matters."""

    how: str
    call: Callable[[World], object]
    cause: str
    kind: type[BaseException] | None = None
    needs: str | None = None
    databases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.how


class Raises(dict[str, Real]):
    """Collects calls by what they do."""

    def of(self, *groups: list[Real]) -> Raises:
        """With the calls of these groups. Each has a text of its own."""
        for real in [one for group in groups for one in group]:
            if real.how in self:
                raise ValueError(f"{real.how!r} is there twice")
            self[real.how] = real
        return self
