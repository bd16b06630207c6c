"""Idempotency records in the admin: what is remembered, until when; deleting one lets its key be used anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.formatting import badge, label, moment, plain, pretty
from jobqueue.admin.readonly import NewestFirst, ReadOnlyAdmin
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import JobQueueError
from jobqueue.idempotency.keys import stored
from jobqueue.models import IdempotencyRecord


class _Hex(bytes):
    """A digest that is written as hexadecimal digits: in addresses, in Django's history."""

    def __str__(self) -> str:
        return self.hex()


class LastToExpireFirst(NewestFirst):
    """In the order of the index on expires_at; digests have none that means anything."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Whatever ?o= says."""
        return ["-expires_at", "-pk"]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """The columns of the list."""
        rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters).defer("result")
        return rows

    def url_for_result(self, result: Any) -> str:
        """By the digest in hexadecimal digits."""
        page = f"{self.model_admin.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(page, args=[bytes(result.pk).hex()])


class ExpiryFilter(admin.SimpleListFilter):
    """Whether it still counts."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Two."""
        return [("kept", _("kept")), ("expired", _("expired"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """By the database's clock."""
        conditions = {None: {}, "kept": {"expires_at__gt": UtcNow()}, "expired": {"expires_at__lte": UtcNow()}}
        if self.value() not in conditions:
            raise IncorrectLookupParameters
        return queryset.filter(**conditions[self.value()])


def _moment(field: str) -> Callable[[Any, Any], str]:
    @admin.display(description=label(IdempotencyRecord, field))
    def show(self: Any, record: Any) -> str:
        return moment(getattr(record, field), record.now)

    return show


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(ReadOnlyAdmin):
    """List and page of records."""

    list_display = ("key_label", "state", "created", "expires")
    list_display_links = ("key_label",)
    list_filter = (ExpiryFilter,)
    actions = None
    search_fields = ("digest",)
    search_help_text = _('Exact key; of several parts as a JSON list: ["refund", 42]')
    created, expires = _moment("created_at"), _moment("expires_at")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The list's class."""
        return LastToExpireFirst

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """The result for those who may see payloads."""
        content = ["result_json"] if request.user.has_perm("jobqueue.view_payload") else []
        return ["key_label", "state", "created", "expires", "digest_hex", *content]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All of them."""
        return self.get_fields(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The result is not even read for those who may not see it."""
        rows = super().get_queryset(request)
        return rows if request.user.has_perm("jobqueue.view_payload") else rows.defer("result")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """By the digest in hexadecimal digits."""
        try:
            digest = bytes.fromhex(object_id)
        except ValueError:
            return None
        found = self.get_queryset(request).filter(pk=digest).first()
        if found is not None:
            found.digest = _Hex(found.digest)
            # Django's own words, for a deletion and in its history, show it as it is.
            found.label = plain(found.label)
        return found

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """By the digest of the key: one row of the primary key."""
        term = search_term.strip()
        if not term:
            return queryset, False
        keys: list[Any] = [term]
        try:
            parts = json.loads(term)
        except (ValueError, RecursionError):
            parts = None
        if isinstance(parts, list):
            keys.append(tuple(parts))
        elif isinstance(parts, int):
            keys.append(parts)
        digests = []
        for key in keys:
            try:
                digests.append(stored(key).digest)
            except JobQueueError:
                continue
        return queryset.filter(pk__in=digests), False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """jobqueue.delete_idempotencyrecord"""
        return request.user.has_perm("jobqueue.delete_idempotencyrecord")

    @admin.display(description=label(IdempotencyRecord, "label"))
    def key_label(self, record: Any) -> str:
        """The beginning of the key."""
        return plain(record.label)

    @admin.display(description=_("state"))
    def state(self, record: Any) -> str:
        """kept or expired"""
        alive = record.expires_at > record.now
        return badge("done", gettext("kept")) if alive else badge("canceled", gettext("expired"))

    @admin.display(description=label(IdempotencyRecord, "digest"))
    def digest_hex(self, record: Any) -> str:
        """SHA-256 of the key."""
        return bytes(record.digest).hex()

    @admin.display(description=label(IdempotencyRecord, "result"))
    def result_json(self, record: Any) -> str:
        """Indented JSON."""
        return pretty(record.result)
