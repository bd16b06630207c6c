"""The list of idempotency records and the page of a record. Deleting a record lets its key be used again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import badge, json_of, label, moment_of, name_of, plain
from jobqueue.admin.page.readonly import ConditionFilter, Facts, NewestFirst, ReadOnlyAdmin
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import JobQueueError
from jobqueue.idempotency.records import stored
from jobqueue.models import IdempotencyRecord

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownRecord = WithAnnotations[IdempotencyRecord, Facts]
else:
    ShownRecord = IdempotencyRecord

#: hexadecimal digits of a digest in titles
DIGITS_SHOWN = 12


class _Hex(bytes):
    """A digest that Django writes in hexadecimal digits, in URLs and in its history."""

    def __str__(self) -> str:
        return self.hex()


class RecordList(NewestFirst):
    """Its links have digests in hexadecimal digits."""

    def url_for_result(self, result: Model) -> str:
        page = f"{self.model_admin.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(page, args=[bytes(result.pk).hex()])


class ExpiryFilter(ConditionFilter):
    """Whether a record has expired, by the database's clock."""

    labels = {"kept": _("kept"), "expired": _("expired")}
    conditions = {"kept": {"expires_at__gt": UtcNow()}, "expired": {"expires_at__lte": UtcNow()}}


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(ReadOnlyAdmin):
    """Idempotency records; the result is only read for users with jobqueue.view_payload."""

    list_display = ("key_label", "state", "created", "expires")
    list_display_links = ("key_label",)
    list_defer = ("result",)
    list_filter = (ExpiryFilter,)
    list_class = RecordList
    # The order of the digests has no meaning.
    order = ("-expires_at", "-pk")
    actions = None
    search_fields = ("digest",)
    search_help_text = _('Exact key; of several parts as a JSON list: ["refund", 42]')
    created = moment_of(IdempotencyRecord, "created_at")
    expires = moment_of(IdempotencyRecord, "expires_at")
    key_label = name_of(IdempotencyRecord, "label")
    result_json = json_of(IdempotencyRecord, "result")

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        content = ["result_json"] if request.user.has_perm("jobqueue.view_payload") else []
        return "key_label", "state", "created", "expires", "digest_hex", *content

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return self.get_fields(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        rows = super().get_queryset(request)
        return rows if request.user.has_perm("jobqueue.view_payload") else rows.defer("result")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Model | None:
        """The record whose digest is `object_id` in hexadecimal digits."""
        try:
            digest = bytes.fromhex(object_id)
        except ValueError:
            return None
        found = self.get_queryset(request).filter(pk=digest).first()
        if isinstance(found, IdempotencyRecord):
            found.digest = _Hex(found.digest)
            # Django shows the label as it is, on the page of a deletion and in its history.
            found.label = plain(found.label)
        return found

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Find the record of a key by its digest, the primary key."""
        keys: list[object] = [term]
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
        return rows.filter(pk__in=digests)

    def row_name(self, object_id: object) -> str:
        """The record with the first digits of its digest: the whole digest is wider than the screen of a telephone."""
        return super().row_name(str(object_id)[:DIGITS_SHOWN])

    def label_of(self, row: IdempotencyRecord) -> str:
        return str(row.label)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm("jobqueue.delete_idempotencyrecord")

    @admin.display(description=_("state"))
    def state(self, record: ShownRecord) -> str:
        alive = record.expires_at > record.now
        return badge("done", gettext("kept")) if alive else badge("canceled", gettext("expired"))

    @admin.display(description=label(IdempotencyRecord, "digest"))
    def digest_hex(self, record: IdempotencyRecord) -> str:
        return bytes(record.digest).hex()
