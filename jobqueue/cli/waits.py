"""Names the holder of a lock for which a command has waited too long."""

from __future__ import annotations

from django.core.management.base import OutputWrapper
from django.db import Error
from django.utils import translation

from jobqueue.db import fault_vendor
from jobqueue.exceptions import DatabaseBusy, StatementTimeout
from jobqueue.explain.row_locks import waits_in_words
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text


def tell_waits(using: str, err: OutputWrapper, error: Exception) -> None:
    """Write the current lock waits to `err` if `error` may have come from one."""
    waited = isinstance(error, DatabaseBusy | StatementTimeout)
    if not waited and not (isinstance(error, Error) and fault_vendor(using).waited_too_long(error)):
        return
    with translation.override(None):
        found = waits_in_words(using)
    for one in found:
        err.write(mask_text(one_line(f"{one.code}: {one.text} {one.next_step}")))
