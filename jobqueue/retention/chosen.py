"""What the looks for ended jobs have found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from jobqueue.models import Job


class Chosen(NamedTuple):
    """Jobs of one queue and state that may be deleted, and when each has ended."""

    queue: str
    status: int
    ended: Mapping[int, datetime]

    @property
    def state(self) -> str:
        """Their state, as the setting names it."""
        return Job.Status(self.status).name.lower()
