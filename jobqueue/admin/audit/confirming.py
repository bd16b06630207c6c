"""What a user must confirm before a verb is applied to many jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.translation import gettext

from jobqueue.runs.preview import Preview

#: up to this number of jobs a button is enough; for more, the user types the number
BUTTON_MAX = 1000
#: how much the number of jobs may have grown since the preview
_GROWN, _FEW = 1.1, 10


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What was sent with the form."""

    reason: str = ""
    typed: str = ""
    everything: bool = False
    shown: int | None = None  # the number of jobs that the page has shown
    until_id: int | None = None  # the newest job when it was shown

    @staticmethod
    def wanted(verb: str, filters: Mapping[str, str], found: Preview) -> str:
        """What must be typed; "" if nothing must be."""
        if found.matched is None:
            return verb
        return str(found.matched) if found.matched > BUTTON_MAX or not filters else ""

    def problem(self, verb: str, filters: Mapping[str, str], found: Preview) -> str:
        """What is missing, as a sentence; "" if all is confirmed."""
        if not filters and not self.everything:
            return gettext("Nothing was written: choose a filter first, or tick that you mean all jobs.")
        if found.matched == 0:
            return gettext("Nothing was written: no job matches any more.")
        if self._has_grown(found):
            return gettext("Nothing was written: meanwhile more jobs match. Look at the new number.")
        if not self.wanted(verb, filters, found):
            return ""
        typed = "".join(c for c in self.typed if c not in " ,.+'\u00a0\u202f").lower()
        if typed == (verb if found.matched is None else str(self.shown)):
            return ""
        return gettext("Nothing was written: type what the page asks for, to confirm.")

    def _has_grown(self, found: Preview) -> bool:
        if found.matched is None:
            return self.shown is not None
        return self.shown is not None and found.matched > self.shown * _GROWN + _FEW


def confirmation_of(data: Mapping[str, str]) -> Confirmation:
    """The confirmation in a POST. A number that no page can have sent counts as missing."""
    return Confirmation(
        reason=data.get("reason", ""),
        typed=data.get("typed", ""),
        everything=data.get("everything") == "yes",
        shown=_number(data.get("shown", "")),
        until_id=_number(data.get("until_id", "")),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
