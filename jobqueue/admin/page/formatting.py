"""Values as text on a page: escaped, cut to a length, with readable times; and columns of a model as such text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from django.contrib import admin
from django.db.models import Model
from django.db.models.functions import Right
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import link, list_address, page_address
from jobqueue.base.durations import format_seconds
from jobqueue.base.payload import JSON
from jobqueue.base.validation import readable_key
from jobqueue.conf import MaskSettings
from jobqueue.exceptions import PayloadError
from jobqueue.failures import FailureCause
from jobqueue.masking import mask_tail, mask_text, mask_value, own_rules
from jobqueue.models import FlowRule, Job
from jobqueue.requested import REQUESTED_ENDS
from jobqueue.signals import RunOutcome

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise as StrOrPromise
else:
    StrOrPromise = str


SHOWN_CHARS = 20_000
#: what is read beyond the end of a text, for a secret that begins before it
SECRET_CHARS = 500
NAME_CHARS = 100
NOTHING = "-"

# Control characters, lone surrogates (which UTF-8 cannot encode), and characters that reverse the direction of text,
# which can make a page show something else than is stored.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# The dotted module before the class of an exception: "shop.payments." of "shop.payments.CardDeclined: no funds".
_MODULE = re.compile(r"(\A|\bafter )(?:[^\W\d]\w*\.)+(?=[^\W\d]\w*(?::|\Z))")


class Row(Protocol):
    """A row of a page, with the database's time."""

    now: datetime


def plain(text: object, limit: int = SHOWN_CHARS) -> str:
    """`text` without its secrets, cut to `limit` characters; never marked as safe.

    The invisible characters are escapes such as \\u202e.
    """
    found = str.__str__(text) if isinstance(text, str) else str(text)
    # More than is shown, so that the end does not cut a secret into something that no pattern knows.
    seen = found[: limit + SECRET_CHARS]
    masked = _name_masked(seen, own_rules()) if len(seen) <= NAME_CHARS else mask_text(seen)
    return _cut(masked, limit, more=len(found) > len(seen))


@lru_cache(maxsize=2048)
def _name_masked(text: str, mask: MaskSettings) -> str:
    # A page names the same queues, tasks and workers in every row.
    return mask_text(text)


def _cut(text: str, limit: int, *, more: bool = False) -> str:
    dots = "..." if more or len(text) > limit else ""
    # A copy that is a plain str: a SafeString would pass every later escape unchanged.
    return _INVISIBLE.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), text[:limit]) + dots


def block(text: object) -> str:
    """Text of several lines, such as a traceback or a log, without its secrets."""
    return masked_block(plain(text))


def masked_block(text: str) -> str:
    """Text of several lines whose secrets are masked already."""
    return format_html('<pre class="jobqueue-text">{}</pre>', _cut(str.__str__(text), SHOWN_CHARS))


def pretty(value: JSON) -> str:
    """Indented JSON without its secrets, or the error if it cannot be read."""
    if value is None:
        return NOTHING
    if isinstance(value, PayloadError):
        return block(value)
    value = mask_value(value)
    try:
        return masked_block(json.dumps(value, indent=2, ensure_ascii=False))
    except RecursionError:
        # Only the encoder that indents is limited: it is written in Python.
        return masked_block(json.dumps(value, ensure_ascii=False))


def badge(kind: str, text: str) -> str:
    """A state as a coloured word."""
    return format_html('<span class="jobqueue-state jobqueue-{}">{}</span>', kind, text)


def mode_badge(mode: str) -> str:
    """Whether a queue or task runs, is paused or drains."""
    return badge("expired" if mode else "running", str(FlowRule.Mode(mode).label))


def hint(text: str, whole: str) -> str:
    """`text`, with `whole` as its hint if that says more."""
    return text if text == whole else format_html('<span title="{}">{}</span>', whole, text)


def stacked(first: str, second: str) -> str:
    """`first`, and below it `second` in small type."""
    return format_html('{}<div class="jobqueue-below">{}</div>', first, second) if second else first


def short_worker(name: str) -> str:
    """The host and the pid of a worker's name: web-1:211:5f0c2a9e/1.1 is web-1:211."""
    return ":".join(name.split(":")[:2])


def short_task(name: str) -> str:
    """The app and the function of a task: shop.orders.tasks.send_receipt is orders.send_receipt."""
    parts = [part for part in name.split(".")[:-1] if part != "tasks"]
    function = name.rpartition(".")[2]
    if not function:
        return name
    return ".".join([*parts[-1:], function])


def task_cell(task: str, limit: int = SHOWN_CHARS) -> str:
    """The app and the function of a task, with its whole name as a hint; a word for a job without a task."""
    return hint(plain(short_task(task), limit), plain(task)) if task else gettext("(handler)")


def short_class(line: str) -> str:
    """`line` without the module of an exception's class, at its beginning or after the word "after"."""
    return _MODULE.sub(r"\1", line, count=1)


def number(value: float) -> str:
    """A number with its thousands apart and two decimals at most, as the active language has them."""
    found = round(value, 2)
    return str(number_format(int(found) if found == int(found) else found, force_grouping=True))


def span(seconds: float) -> str:
    """A duration without its sign; tenths of seconds only below ten seconds."""
    size = abs(seconds)
    return format_seconds(size if size < 10 else float(round(size)))


def relative(instant: datetime, now: datetime) -> str:
    """`instant` seen from `now`, such as "in 5m 3s" or "12s ago"."""
    seconds = (instant - now).total_seconds()
    return (gettext("in %(time)s") if seconds > 0 else gettext("%(time)s ago")) % {"time": span(seconds)}


def moment(instant: datetime | None, now: datetime) -> str:
    """`instant` in the active time zone and seen from `now`, such as "2026-01-31 12:01:07 UTC (5m 3s ago)"."""
    if instant is None:
        return NOTHING
    return f"{_local(instant):%Y-%m-%d %H:%M:%S %Z} ({relative(instant, now)})"


def ago(instant: datetime | None, now: datetime) -> str:
    """`instant` seen from `now`, with moment() as its hint."""
    return NOTHING if instant is None else hint(relative(instant, now), moment(instant, now))


def stamp(instant: datetime) -> str:
    """`instant` in the active time zone, such as "2026-01-31 12:01:07"."""
    return f"{_local(instant):%Y-%m-%d %H:%M:%S}"


def _local(instant: datetime) -> datetime:
    zone: tzinfo = timezone.get_current_timezone()
    try:
        return instant.astimezone(zone)
    except (OverflowError, ValueError):
        # The first or the last day of the calendar, which other programs write for "always" and "never".
        return instant.astimezone(UTC)


def label(model: type[Model], field: str) -> StrOrPromise:
    """The title of a model's field."""
    return next(known for known in model._meta.fields if known.name == field).verbose_name


def _column(
    model: type[Model], field: str, text: Callable[[Any, datetime], str], title: StrOrPromise = ""
) -> Callable[..., str]:
    @admin.display(description=title or label(model, field))
    def show(self: object, row: Row) -> str:
        return text(getattr(row, field), row.now)

    return show


def moment_of(model: type[Model], field: str) -> Callable[..., str]:
    """A column that shows an instant with moment()."""
    return _column(model, field, moment)


def ago_of(model: type[Model], field: str, title: StrOrPromise = "") -> Callable[..., str]:
    """A column that shows an instant with ago(); its title is that of the field unless another one is given."""
    return _column(model, field, ago, title)


def name_of(model: type[Model], field: str) -> Callable[..., str]:
    """A column that shows a name that another program chose."""
    return _column(model, field, lambda name, now: plain(name or NOTHING))


def key_of(model: type[Model], field: str) -> Callable[..., str]:
    """A column that shows a key as text."""
    return _column(model, field, lambda key, now: plain(readable_key(key)) if key else NOTHING)


def json_of(model: type[Model], field: str) -> Callable[..., str]:
    """A column that shows a value as indented JSON."""
    return _column(model, field, lambda value, now: pretty(value))


def same_failure(fingerprint: str) -> str:
    """A fingerprint, as a link to the dead letters that have it."""
    return link(list_address("job", fingerprint=fingerprint), plain(fingerprint))


def job_link(job_id: int) -> str:
    """The id of a job, as a link to its page."""
    return link(page_address("job", job_id), job_id)


#: from this share of failed runs on, a row or a figure is marked
HIGH_ERROR_RATE = 0.1


def is_high(rate: float | None) -> bool:
    """Whether this share of failed runs (0 to 1) is marked."""
    return (rate or 0) >= HIGH_ERROR_RATE


def marked(rate: float | None, text: str) -> str:
    """`text`, which tells the share, marked if the share is high; a dash if no run failed."""
    if not rate:
        return NOTHING
    return format_html('<strong class="jobqueue-high">{}</strong>', text) if is_high(rate) else text


CAUSES: dict[str, StrOrPromise] = {cause: cause.label for cause in FailureCause}
#: what an attempt may have besides
REQUESTED: dict[str, StrOrPromise] = {
    **{end.outcome: end.label for end in REQUESTED_ENDS},
    RunOutcome.CANCELED: _("canceled"),
}


TAIL_CHARS, LINE_CHARS = 500, 200


def error_tail() -> Right:
    """The end of the column last_error."""
    return Right("last_error", TAIL_CHARS)


def error_line(tail: str | None, *, read: int = TAIL_CHARS, most: int = LINE_CHARS) -> str:
    """The last line of the last `read` characters of an error: without secrets and without the module of its class."""
    lines = mask_tail(tail or "", read).strip().splitlines()
    return plain(short_class(lines[-1]), most) if lines else ""


def error_lines(job_ids: Collection[int], using: str) -> dict[int, str]:
    """The line of each of these jobs that is there. One statement, by the key."""
    if not job_ids:
        return {}
    rows = Job.objects.using(using).filter(pk__in=job_ids).annotate(tail=error_tail())
    return {job_id: error_line(tail) for job_id, tail in rows.values_list("pk", "tail")}


def message_of(error_class: str, line: str) -> str:
    """The last line of an error of this class, or the class, if the job has failed with another error since."""
    name = short_class(error_class)
    return line if line.startswith(name) else plain(name, LINE_CHARS)
