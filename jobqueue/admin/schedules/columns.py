"""The computed columns of a schedule, in the list and on its page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.jobs.states import state_label
from jobqueue.admin.jobs.states import state_of as state_of_job
from jobqueue.admin.page.formatting import (
    NOTHING,
    StrOrPromise,
    ago,
    badge,
    error_line,
    error_tail,
    hint,
    job_link,
    moment,
    moment_of,
    name_of,
    plain,
    pretty,
    relative,
    short_task,
    span,
    stacked,
    stamp,
)
from jobqueue.admin.page.readonly import Facts
from jobqueue.admin.page.tables import table_html
from jobqueue.admin.schedules.form import MISSED_WORDS, OVERLAP_WORDS, UNREADABLE, definition_of, duration
from jobqueue.conf import load
from jobqueue.db.clock import Selected, UtcNow
from jobqueue.exceptions import InvalidValue, WrongSettings
from jobqueue.models import Job, Schedule, ScheduleTick, ScheduleVersion
from jobqueue.schedules.definitions import Definition, from_json
from jobqueue.schedules.listing import arguments_of, is_late
from jobqueue.schedules.timing import Timing, zone_of

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownSchedule = WithAnnotations[Schedule, Facts]
else:
    ShownSchedule = Schedule

_RESULT_COLUMNS = ("status", "gate", "run_at", "lock_until", "cancel_requested_at", "last_started_at", "finished_at")
NEXT_SHOWN, TICKS_SHOWN = 5, 20
LIST_CHARS, REASON_CHARS = 80, 200
WORDS: dict[str, StrOrPromise] = {"enabled": _("enabled"), "disabled": _("disabled"), "retired": _("retired")}
_BADGES = {"enabled": "running", "disabled": "expired", "retired": "canceled"}
_TICK_BADGES = {"fired": "done", "waiting": "ready", "missed": "failed", "refused": "failed", "skipped": "canceled"}


def state_of(row: Schedule) -> str:
    """One of "enabled", "disabled" and "retired"."""
    if row.retired_at is not None:
        return "retired"
    return "enabled" if row.enabled else "disabled"


def by_hand(row: Schedule) -> bool:
    """Whether a schedule of the code or the settings was changed by hand."""
    return bool(row.edited) and row.source != Schedule.Source.ADMIN


def to_take_back(row: Schedule) -> bool:
    """Whether workers announce something that a change by hand keeps out."""
    return bool(row.announced_digest) and (bool(row.edited) or row.source == Schedule.Source.ADMIN)


def differs(row: Schedule) -> bool:
    """Whether workers announce another definition than the one in force."""
    return bool(row.announced_digest) and row.announced_digest != row.digest


def words_of(timing: Timing) -> str:
    """The expression in words, with its time zone; an interval has none."""
    if timing.cron is None:
        return gettext("every %(time)s") % {"time": duration(timing.every_seconds or 0.0)}
    try:
        return plain(timing.words)
    except WrongSettings as error:
        return plain(error)


def _from_definition(title: StrOrPromise, text: Callable[[Definition], str]) -> Callable[..., str]:
    """A column that shows a part of the definition in force."""

    @admin.display(description=title)
    def show(self: object, row: Schedule) -> str:
        found = definition_of(row)
        return str(UNREADABLE) if found is None else text(found)

    return show


def _moment(instant: datetime | None) -> str:
    return NOTHING if instant is None else f"{stamp(instant)} {timezone.get_current_timezone_name()}"


def _missed(found: Definition) -> str:
    words = str(MISSED_WORDS.get(found.missed, plain(found.missed)))
    return f"{words} ({found.missed_limit})" if found.missed == "all" else words


def _expression(found: Definition) -> str:
    timing = found.timing
    return plain(timing.cron) if timing.cron else duration(timing.every_seconds or 0.0)


class ScheduleColumns:
    """A mixin with one method or attribute per column."""

    schedule_name = name_of(Schedule, "name")
    created, updated = moment_of(Schedule, "created_at"), moment_of(Schedule, "updated_at")
    expression = _from_definition(_("cron expression or interval"), _expression)
    words = _from_definition(_("when"), lambda found: words_of(found.timing))
    zone = _from_definition(_("time zone"), lambda found: plain(found.timing.timezone))
    queue = _from_definition(_("queue"), lambda found: plain(found.template.queue))
    on_missed = _from_definition(_("ticks at which no worker ran"), _missed)
    on_overlap = _from_definition(
        _("if the job before has not ended"), lambda found: str(OVERLAP_WORDS.get(found.overlap, plain(found.overlap)))
    )
    jitter = _from_definition(_("jitter"), lambda found: duration(found.jitter_seconds))
    first_at = _from_definition(_("first tick not before"), lambda found: _moment(found.timing.start_at))
    until_at = _from_definition(_("last tick not after"), lambda found: _moment(found.timing.end_at))
    args_json = _from_definition(_("positional arguments"), lambda found: pretty(arguments_of(found)[0]))
    kwargs_json = _from_definition(_("named arguments"), lambda found: pretty(arguments_of(found)[1]))

    @admin.display(description=_("task"))
    def task_short(self, row: Schedule) -> str:
        return hint(plain(short_task(row.task), LIST_CHARS), plain(row.task))

    @admin.display(description=_("task"))
    def task_name(self, row: Schedule) -> str:
        return plain(row.task)

    @admin.display(description=_("next tick"))
    def next_tick(self, row: ShownSchedule) -> str:
        return ago(row.next_at, row.now)

    @admin.display(description=_("last tick"))
    def last_tick(self, row: ShownSchedule) -> str:
        return ago(row.last_tick_at, row.now)

    @admin.display(description=_("last job"))
    def last_result(self, row: ShownSchedule) -> str:
        """A link to the job of the last tick, and how it ended: for those who may see jobs."""
        results: dict[int, str] = getattr(row, "results", {})
        if row.last_job_id is None:
            return NOTHING
        return format_html("{} {}", job_link(row.last_job_id), results.get(row.last_job_id, ""))

    @admin.display(description=_("state"))
    def state(self, row: ShownSchedule) -> str:
        """The state; below it why it is disabled, and whether the code says the same."""
        state = state_of(row)
        notes = [plain(row.reason, REASON_CHARS)] if row.reason and not row.enabled else []
        if by_hand(row):
            notes.append(gettext("changed by hand"))
        if differs(row):
            notes.append(gettext("the code differs"))
        late = gettext("late: no worker fires it") if is_late(row, row.now) else ""
        shown = badge("expired", late) if late else badge(_BADGES[state], str(WORDS[state]))
        return stacked(shown, format_html_join("; ", "{}", ((note,) for note in notes)))

    @admin.display(description=_("source"))
    def origin(self, row: Schedule) -> str:
        """Where it comes from, and what follows for a change that is made here."""
        where = str(row.get_source_display())
        if row.source == Schedule.Source.ADMIN:
            return where
        if not row.edited:
            return stacked(where, gettext("What is changed here stays in force over deploys until it is taken back."))
        who = plain(row.edited_by) or gettext("an operator")
        text = gettext("Changed by %(who)s. The change stays in force over deploys until it is taken back.")
        return stacked(where, text % {"who": who})

    @admin.display(description=_("workers announce"))
    def announced(self, row: ShownSchedule) -> str:
        """What the code and the settings of workers say, if that is something else than what is in force."""
        if row.source == Schedule.Source.ADMIN and not row.announced_digest:
            return NOTHING
        seen = stacked(gettext("the same as what is in force"), moment(row.announced_at, row.now))
        if not differs(row):
            return seen
        return stacked(
            format_html("{} {}", gettext("something else:"), _version(row)), moment(row.announced_at, row.now)
        )

    @admin.display(description=_("next ticks"))
    def next_ticks(self, row: ShownSchedule) -> str:
        """The next NEXT_SHOWN ticks, in the time zone of the schedule, as if it were enabled."""
        found = definition_of(row)
        if found is None:
            return str(UNREADABLE)
        try:
            ticks, zone = found.timing.first(NEXT_SHOWN, row.now), zone_of(found.timing.timezone)
        except (WrongSettings, OSError, ValueError, KeyError) as error:
            return plain(error)
        shown = ((f"{tick.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}", relative(tick, row.now)) for tick in ticks)
        lines = format_html_join("", "<li>{} ({})</li>", shown)
        if not lines:
            return gettext("none: its last tick has passed")
        note = "" if state_of(row) == "enabled" else gettext("If it were enabled; now it does not fire.")
        return stacked(format_html('<ul class="jobqueue-ticks">{}</ul>', lines), note)

    @admin.display(description=_("last ticks"))
    def last_ticks(self, row: Schedule) -> str:
        """The newest TICKS_SHOWN ticks that were decided, newest first, each with the result of its job."""
        using = load().database
        ticks = ScheduleTick.objects.using(using).filter(schedule_id=row.pk).order_by("-tick_at")
        shown = list(ticks[:TICKS_SHOWN])
        jobs = [tick.job_id for tick in shown if tick.job_id is not None]
        results = results_of(jobs, using) if getattr(row, "shows_jobs", False) else {}
        zone = {"zone": timezone.get_current_timezone_name()}
        titles = (
            gettext("tick (%(zone)s)") % zone,
            gettext("outcome"),
            gettext("ticks"),
            gettext("job"),
            gettext("result"),
            gettext("decided (%(zone)s)") % zone,
        )
        return table_html(titles, [_cells(tick, results) for tick in shown]) if shown else NOTHING


def _cells(tick: ScheduleTick, results: Mapping[int, str]) -> tuple[object, ...]:
    outcome = badge(_TICK_BADGES.get(tick.outcome, "canceled"), plain(tick.get_outcome_display()))
    job, result = NOTHING, NOTHING
    if tick.job_id is not None:
        job, result = job_link(tick.job_id), results.get(tick.job_id, NOTHING)
    return stamp(tick.tick_at), outcome, tick.ticks, job, result, stamp(tick.created_at)


def results_of(job_ids: Collection[int], using: str) -> dict[int, str]:
    """The state of each of these jobs that is there; below it how long it ran, or its last error.

    One statement, by the key.
    """
    if not job_ids:
        return {}
    rows = Job.objects.using(using).filter(pk__in=job_ids).only(*_RESULT_COLUMNS)
    return {job.pk: _result(job) for job in rows.annotate(now=Selected(UtcNow()), error_tail=error_tail())}


def _result(job: Any) -> str:
    note = ""
    if job.status == Job.Status.DONE and job.last_started_at is not None and job.finished_at is not None:
        ran = max(0.0, (job.finished_at - job.last_started_at).total_seconds())
        note = gettext("ran %(time)s") % {"time": span(ran)}
    elif job.status != Job.Status.DONE:
        note = error_line(job.error_tail)
    return stacked(badge(state_of_job(job), state_label(job)), note)


def _version(row: Any) -> str:
    """When and which task, as workers announce it."""
    versions = ScheduleVersion.objects.using(load().database).filter(name=row.name, digest=row.announced_digest)
    version = versions.first()
    try:
        found = None if version is None else from_json(version.definition)
    except InvalidValue:
        return str(UNREADABLE)
    if found is None:
        return gettext("its definition is no longer stored")
    return f"{words_of(found.timing)}, {plain(found.template.task)}"
