"""Failures of one kind: dead letters in groups of them as a table, and notes: their list, page and cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue import dead_letters
from jobqueue.admin.page.addresses import address_of, link, page_address
from jobqueue.admin.page.formatting import (
    CAUSES,
    NOTHING,
    block,
    error_lines,
    hint,
    message_of,
    moment_of,
    name_of,
    number,
    plain,
    relative,
    same_failure,
    task_cell,
)
from jobqueue.admin.page.readonly import Facts, NewestFirst, ReadOnlyAdmin
from jobqueue.admin.page.tables import Column, Table, table_of
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.dead_letters import DeadLetters
from jobqueue.dead_letters.noting import NOTE_CHARS, notes_on
from jobqueue.masking import mask_text
from jobqueue.models import FailureNote
from jobqueue.models.failure_note import AUTHOR_CHARS

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownNote = WithAnnotations[FailureNote, Facts]
    _NoteForm = forms.ModelForm[Any]
else:
    _NoteForm = forms.ModelForm


LIST_CHARS, HINT_CHARS = 120, 500
_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.ASCII)


def may_write(request: HttpRequest) -> bool:
    """Whether this user may write notes."""
    return request.user.has_perm("jobqueue.change_failurenote")


def note_cell(fingerprint: str | None, text: str, request: HttpRequest) -> str:
    """The beginning of a note for a table; a link to its page for those who may write it."""
    shown = hint(plain(text, LIST_CHARS), plain(text, HINT_CHARS)) if text else ""
    if fingerprint is None or not may_write(request):
        return shown or NOTHING
    return link(page_address("failurenote", fingerprint), shown or gettext("Write a note"))


def note_block(fingerprint: str, request: HttpRequest) -> str:
    """The whole note for the page of a job, who wrote it, and a link for those who may write it."""
    found = notes_on([fingerprint], using=load().database).get(fingerprint)
    parts = [block(found.text), plain(found.by), " "] if found else []
    if may_write(request):
        words = gettext("Change the note") if found else gettext("Write a note")
        parts.append(link(page_address("failurenote", fingerprint), words))
    return format_html("{}" * len(parts), *parts) if parts else NOTHING


class NoteForm(_NoteForm):
    """One field; empty, it removes the note."""

    note = forms.CharField(
        label=_("note"),
        required=False,
        max_length=NOTE_CHARS,
        widget=forms.Textarea(attrs={"rows": 6, "cols": 80}),
        help_text=_("All jobs that fail like that show it, now and later. An empty note is removed."),
    )

    class Meta:
        model = FailureNote
        fields = ("note",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["note"] = mask_text(self.instance.note or "")

    def clean_note(self) -> str:
        """The text; the stored one, with its secrets, if it was left as it was shown."""
        text: str = self.cleaned_data["note"]
        stored: str = self.instance.note or ""
        # Browsers send line breaks of their own.
        return stored if text.split() == mask_text(stored).split() else text


class NewestChangeFirst(NewestFirst):
    """The notes are few: a sort of all of them costs nothing."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        return ["-updated_at", "pk"]


@admin.register(FailureNote)
class FailureNoteAdmin(ReadOnlyAdmin):
    """Notes; a page exists for each fingerprint, whether it has a note or not."""

    form = NoteForm
    actions = None
    list_display = ("fingerprint", "beginning", "written_by", "updated")
    list_display_links = ("fingerprint",)
    fields = ("jobs", "note", "written_by", "updated")
    readonly_fields = ("jobs", "written_by", "updated")
    updated = moment_of(FailureNote, "updated_at")
    written_by = name_of(FailureNote, "author")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return may_write(request)

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[NewestFirst]:
        return NewestChangeFirst

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Model | None:
        """The note on the fingerprint `object_id`, or an empty one."""
        if not _FINGERPRINT.fullmatch(object_id):
            return None
        found = self.get_queryset(request).filter(pk=object_id).first()
        if found is None:
            found = FailureNote(fingerprint=object_id, note="", author="", updated_at=None)  # type: ignore[misc]
            found.now = read_now(load().database)  # type: ignore[attr-defined]
        return found

    def save_model(self, request: HttpRequest, obj: Any, form: forms.ModelForm[Any], change: bool) -> None:
        """Write the note, or remove it if the text is empty."""
        name = request.user.get_username()[:AUTHOR_CHARS]
        dead_letters.note(obj.fingerprint, obj.note, by=name, using=load().database)

    @admin.display(description=_("note"))
    def beginning(self, row: ShownNote) -> str:
        return hint(plain(row.note, LIST_CHARS), plain(row.note, HINT_CHARS))

    @admin.display(description=_("dead letters of this kind"))
    def jobs(self, row: ShownNote) -> str:
        """The fingerprint, as a link to the jobs."""
        return same_failure(row.fingerprint)


def failure_table(groups: Sequence[DeadLetters], now: datetime, request: HttpRequest, *, redrives: bool) -> Table:
    """Dead letters in groups of the same failure, each with the error of its newest job.

    With `redrives`, the last column leads to the page that retries the whole group.
    """
    errors = error_lines([one.sample_job_id for one in groups], load().database)
    columns = (*_COLUMNS, Column(_("redrive"))) if redrives else _COLUMNS
    rows = []
    for one in groups:
        own = _cells(one, errors.get(one.sample_job_id, ""), now)
        more = [_redrive_of(one)] if redrives else []
        rows.append((*own, note_cell(one.fingerprint, one.note, request), *more))
    return table_of(columns, rows)


_COLUMNS = (
    Column(_("task")),
    Column(_("error"), is_message=True),
    Column(_("jobs"), is_number=True),
    Column(_("cause")),
    Column(_("first seen")),
    Column(_("last seen")),
    Column(_("fingerprint of the failure")),
    Column(_("note")),
)


def _cells(one: DeadLetters, line: str, now: datetime) -> tuple[object, ...]:
    error = message_of(one.error_class, line) or NOTHING
    return (
        task_cell(one.task or ""),
        link(page_address("job", one.sample_job_id), error),
        number(one.count),
        CAUSES.get(one.cause or "", plain(one.cause or NOTHING)),
        relative(one.first_seen, now) if one.first_seen else NOTHING,
        relative(one.last_seen, now) if one.last_seen else NOTHING,
        same_failure(one.fingerprint) if one.fingerprint else NOTHING,
    )


def _redrive_of(one: DeadLetters) -> str:
    if not one.fingerprint:
        return NOTHING
    return link(address_of("redrive_new", fingerprint=one.fingerprint), gettext("Retry all"))
