"""The words for verbs and filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.filters import AGES
from jobqueue.admin.jobs.states import LABELS
from jobqueue.admin.page.causes import CAUSES
from jobqueue.admin.page.formatting import number, plain
from jobqueue.models import AuditEvent
from jobqueue.runs.preview import MATCHED_MAX

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

#: the choice of a verb, and the note on what it does
VERBS: dict[str, tuple[StrOrPromise, StrOrPromise]] = {
    AuditEvent.Verb.RETRY: (
        _("Retry"),
        _(
            "Failed and canceled jobs run again, with new attempts. Scheduled and held jobs run now if you chose their "
            "state."
        ),
    ),
    AuditEvent.Verb.CANCEL: (_("Cancel"), _("Waiting jobs end as canceled. Running jobs are asked to stop.")),
    AuditEvent.Verb.DISCARD: (_("Discard"), _("Waiting and failed jobs end as canceled, and do not run.")),
    AuditEvent.Verb.RELEASE: (
        _("Release"),
        _("Running jobs are taken from their workers and run again, without using an attempt."),
    ),
    AuditEvent.Verb.PRUNE: (
        _("Delete"),
        _("Ended jobs are deleted with their attempts. Nothing can bring them back."),
    ),
}
FILTERS: dict[str, StrOrPromise] = {
    "state": _("state"),
    "queue": _("queue"),
    "task": _("task"),
    "tag": _("tag"),
    "cause": _("cause of failure"),
    "fingerprint": _("fingerprint of the failure"),
    "worker": _("worker"),
    "job_ids": _("jobs"),
    "from_id": _("added since job"),
    "error": _("error"),
    "age": _("added in"),
    "q": _("search"),
}
_VALUES: dict[str, Mapping[str, StrOrPromise]] = {
    "state": LABELS,
    "cause": CAUSES,
    "age": {name: word for name, (_length, word) in AGES.items()},
}
VALUE_CHARS = 100


def filter_parts(filters: Mapping[str, str]) -> list[tuple[StrOrPromise, str]]:
    """The title and the value of each filter."""
    return [
        (FILTERS.get(name, plain(name, 40)), str(_VALUES.get(name, {}).get(value, plain(value, VALUE_CHARS))))
        for name, value in filters.items()
    ]


def filter_words(filters: Mapping[str, str]) -> str:
    """Such as "state: failed, queue: mail"."""
    return ", ".join(f"{title}: {value}" for title, value in filter_parts(filters)) or gettext("all jobs")


def matched_words(matched: int | None) -> str:
    """Such as "1,200", or "10,000+" from the number up to which jobs are counted."""
    if matched is None:
        return gettext("not counted")
    return number(matched) + ("+" if matched >= MATCHED_MAX else "")
