"""A verb for each of the rows that were chosen in a list, and what the user is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from django.contrib import messages
from django.db import Error
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext

from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.conf import load
from jobqueue.exceptions import DatabaseBusy

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
    told: Callable[[Changed], Iterator[str]],
    *,
    allowed: Sequence[str],
) -> None:
    """Call `verb` for the first ACTION_MAX rows; say what happened to them, and record it in the history.

    `told` gives the sentences about the changed rows; `allowed` are the states in which the verb changes rows.
    """
    using = load().database
    # One row more than is used shows whether there are more.
    rows = model_admin.states_of(queryset.order_by("pk")[: ACTION_MAX + 1])
    changed: list[tuple[int, str]] = []
    refused: list[str] = []
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
    said = [*(told(changed) if changed else ()), *_left(model_admin, name, refused, allowed)]
    if len(rows) > ACTION_MAX:
        said.append(only_the_first())
    if not rows:
        said.append(gettext("Nothing was changed: the rows that you chose are no longer in this list."))
    if said:
        model_admin.message_user(request, " ".join(said), messages.SUCCESS if changed else messages.WARNING)


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
