"""Admin pages whose rows have verbs: actions in the list, buttons on the page of a row, a permission for each verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import Error
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import StrOrPromise, error_tail, relative
from jobqueue.admin.page.history import log_entry
from jobqueue.admin.page.readonly import NewestFirst, ReadOnlyAdmin
from jobqueue.conf import load
from jobqueue.exceptions import DatabaseBusy

LOG_BATCH = 100


class VerbList(NewestFirst):
    """A list with the end of the last error as `error_tail`."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> QuerySet[Model]:
        rows: QuerySet[Model] = super().get_queryset(request, exclude_parameters)
        return self.shown(rows)

    def shown(self, rows: QuerySet[Model]) -> QuerySet[Model]:
        """`rows` with the columns that the list needs."""
        few = rows.defer(*self.model_admin.list_defer)
        found: QuerySet[Model] = few.annotate(error_tail=error_tail())
        return found


class Button(NamedTuple):
    """A verb with the label of its button, and a sentence on what it does, for the template buttons.html."""

    name: str
    label: StrOrPromise
    note: StrOrPromise


def needs(permission: str) -> Callable[[VerbAdmin, HttpRequest], bool]:
    """A method that tells whether a user has this permission."""
    return lambda self, request: request.user.has_perm(f"jobqueue.{permission}")


class VerbAdmin(ReadOnlyAdmin):
    """Rows with an integer key, verbs, and content that only users with jobqueue.view_payload see."""

    #: the fieldset with the content, which is shown second, and the columns that it reads
    content: Any = None
    content_columns: tuple[str, ...] = ()
    #: verb -> label of its button
    button_labels: Mapping[str, StrOrPromise] = {}
    #: state, as states_of() gives it -> its word
    state_words: Mapping[str, StrOrPromise] = {}

    def verbs_for(self, row: Any) -> tuple[str, ...]:
        """The verbs that can change this row now; the functions they call check that again."""
        raise NotImplementedError

    def parts_of(self, row: Any, request: HttpRequest, permitted: Sequence[str]) -> dict[str, Any]:
        """What the template of the page of a row shows instead of fieldsets, to a user with these verbs."""
        return {}

    def button_label(self, name: str, row: Any) -> StrOrPromise:
        """The label of the button for a verb on the page of this row."""
        return self.button_labels[name]

    def unchanged(self, name: str, count: int) -> str:
        """Why a verb has not changed `count` rows whose state allows it."""
        return ngettext(
            "%(n)d was not changed: its state has just changed.",
            "%(n)d were not changed: their states have just changed.",
            count,
        ) % {"n": count}

    def states_of(self, rows: QuerySet[Any]) -> list[tuple[int, str]]:
        """The primary key of each row, and its state for the history and for messages."""
        raise NotImplementedError

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """The rows; the content is not even read for users who may not see it."""
        rows = super().get_queryset(request)
        return rows if self.shows_content(request) else rows.defer(*self.content_columns)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        own: Any = self.fieldsets or ()
        return (own[0], self.content, *own[1:]) if self.content and self.shows_content(request) else own

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"]]

    def shows_content(self, request: HttpRequest) -> bool:
        """Whether this user may see payloads and results."""
        return request.user.has_perm("jobqueue.view_payload")

    has_retry_permission = needs("retry_job")
    has_discard_permission = needs("discard_job")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        own = {"permitted": list(self.get_actions(request))}
        return super().change_view(request, object_id, form_url, own | (extra_context or {}))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show a button for each verb that can change this row now and that this user may use."""
        row = context.get("original")
        if row is not None:
            context["page"] = self.parts_of(row, request, context["permitted"])
        verbs = self.verbs_for(row) if row is not None else ()
        context["verbs"] = [(name, self.button_label(name, row)) for name in verbs if name in context["permitted"]]
        return super().render_change_form(request, context, *args, **kwargs)

    def log_verb(self, request: HttpRequest, changed: Sequence[tuple[int, str]]) -> None:
        """Record in Django's history which rows this user changed, each with a text."""
        entries = [
            log_entry(request, self.model, row_id, self.row_name(row_id), CHANGE, what) for row_id, what in changed
        ]
        LogEntry.objects.bulk_create(entries, batch_size=LOG_BATCH)


#: rows of one request; with more rows it might reach its time limit half-way
ACTION_MAX = 1000

#: rows that a verb has changed, each with its state before
Changed = Sequence[tuple[int, str]]


def apply(
    model_admin: VerbAdmin,
    request: HttpRequest,
    queryset: QuerySet[Model],
    name: str,
    verb: Callable[..., bool],
    told: Callable[[Changed], Iterator[str]] | StrOrPromise,
    *,
    allowed: Sequence[str],
) -> None:
    """Call `verb` for the first ACTION_MAX rows; say what happened to them, and record it in the history.

    `told` gives the sentences about the changed rows, or is one with their number as %(n)d; `allowed` are the states in
    which the verb changes rows.
    """
    using = load().database
    # One row more than is used shows whether there are more.
    rows = model_admin.states_of(queryset.order_by("pk")[: ACTION_MAX + 1])
    changed, refused = list[tuple[int, str]](), list[str]()
    try:
        for row_id, state in rows[:ACTION_MAX]:
            if verb(row_id, using=using):
                changed.append((row_id, state))
            else:
                refused.append(state)
    except (Error, DatabaseBusy):
        text = gettext("The database could not be written to. The other rows are unchanged; try again later.")
        model_admin.message_user(request, text, messages.ERROR)
    finally:
        # Rows that were changed before an error are recorded too.
        model_admin.log_verb(request, [(row_id, f"{name} (was {state})") for row_id, state in changed])
    said = list(_left(model_admin, name, refused, allowed))
    if changed:
        said = [*(told(changed) if callable(told) else [str(told % {"n": len(changed)})]), *said]
    if len(rows) > ACTION_MAX:
        said.append(only_the_first())
    if not rows:
        said.append(gettext("Nothing was changed: the rows that you chose are no longer in this list."))
    if said:
        model_admin.message_user(request, " ".join(said), messages.SUCCESS if changed else messages.WARNING)


def confirmation(
    model_admin: VerbAdmin,
    request: HttpRequest,
    verb: str,
    ids: Sequence[int],
    *,
    title: str,
    submit: str,
    notes: Sequence[str],
    fields: Sequence[tuple[str, str, str]] = (),
) -> HttpResponse:
    """The page that asks before a verb changes rows; the answer is posted as the action with confirm=yes.

    `fields`: name, label and value of each input.
    """
    context = model_admin.admin_site.each_context(request) | {
        "title": title,
        "opts": model_admin.opts,
        "verb": verb,
        "ids": ids,
        "checkbox": ACTION_CHECKBOX_NAME,
        "notes": notes,
        "fields": fields,
        "submit": submit,
    }
    return TemplateResponse(request, "admin/jobqueue/confirm_verb.html", context)


class RunAdmin(ReadOnlyAdmin):
    """Recorded runs over many jobs. One that is under way is stopped in the list, or on its page."""

    def may_stop(self, request: HttpRequest, run: Any) -> bool:
        """Whether this user may stop this run."""
        raise NotImplementedError

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the button "Stop" while the run is under way."""
        run = context.get("original")
        if run is not None and run.ended_at is None and self.may_stop(request, run):
            context["verbs"] = [("stop", gettext("Stop"))]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("recorded"))
    def begun(self, run: Any) -> str:
        return relative(run.created_at, run.now)


def stop_each(
    model_admin: ReadOnlyAdmin,
    request: HttpRequest,
    queryset: QuerySet[Model],
    stop: Callable[[Any], bool],
    told: Callable[[int], str],
) -> None:
    """Call `stop` for the first ACTION_MAX runs; say how many it has ended, by `told`."""
    stopped = 0
    # One more than is used shows whether there are more.
    chosen = list(queryset.order_by("pk")[: ACTION_MAX + 1])
    try:
        for run in chosen[:ACTION_MAX]:
            stopped += stop(run)
    except (Error, DatabaseBusy):
        text = gettext("The database could not be written to. The other rows are unchanged; try again later.")
        model_admin.message_user(request, text, messages.ERROR)
    said = [told(stopped), *([only_the_first()] if len(chosen) > ACTION_MAX else [])]
    model_admin.message_user(request, " ".join(said), messages.SUCCESS if stopped else messages.WARNING)


def only_the_first() -> str:
    """What an action says if more than ACTION_MAX rows were chosen."""
    return gettext("Only the first %(n)d were processed; repeat the action for the others.") % {"n": ACTION_MAX}


def _left(model_admin: VerbAdmin, name: str, refused: Sequence[str], allowed: Sequence[str]) -> Iterator[str]:
    """Why rows were not changed."""
    states = [state for state in refused if state not in allowed]
    if states:
        words = "; ".join(str(model_admin.state_words[state]) for state in sorted(set(states), key=states.index))
        yield ngettext(
            "%(n)d was not changed, because its state does not allow it: %(states)s.",
            "%(n)d were not changed, because their state does not allow it: %(states)s.",
            len(states),
        ) % {"n": len(states), "states": words}
    if others := len(refused) - len(states):
        yield model_admin.unchanged(name, others)
