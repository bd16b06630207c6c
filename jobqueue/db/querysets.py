"""The querysets and changes that allocate.take() and jobqueue.bulk accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.core.exceptions import FieldDoesNotExist
from django.db import models, router

from jobqueue.exceptions import InvalidType, InvalidValue

M = TypeVar("M", bound=models.Model)


def check_lock_options(skip_locked: object, nowait: object) -> None:
    """Raises InvalidType, InvalidValue unless both are bools and at most one is True."""
    for name, value in (("skip_locked", skip_locked), ("nowait", nowait)):
        if not isinstance(value, bool):
            raise InvalidType(f"{name} must be True or False, got {type(value).__name__}. Nothing was written.")
    if skip_locked and nowait:
        raise InvalidValue(
            "skip_locked leaves locked rows out and nowait raises when there is one: give one of them. Nothing was "
            "written."
        )


def check_queryset(queryset: object) -> models.QuerySet[Any]:
    """A fresh copy bound to the database it writes to, in its order or else by key, without locks.

    Model rows only, unsliced, without window functions.
    """
    found = bound(queryset)
    query: Any = found.query
    if query.is_sliced:
        raise InvalidValue("the queryset is sliced; give the number of rows as n instead. Nothing was written.")
    if gives_other_rows(found):
        raise InvalidValue(
            "the queryset must give rows of one table, which can be locked: no values(), values_list(), union(), "
            "distinct(), aggregates. Nothing was written; filter by other tables with Exists()."
        )
    if filters_by_window(query) or any(_windowed(part) for part in [*query.annotations.values(), *query.order_by]):
        raise InvalidValue(
            "the queryset has a window function, and its rows cannot be locked. Nothing was written; filter and order "
            "by columns, or read the keys first and pass a queryset that filters by them."
        )
    query.select_for_update = False
    return found if found.ordered else found.order_by("pk")


def bound(queryset: object) -> models.QuerySet[Any]:
    """A fresh copy of a queryset, bound to the database it writes to. Raises InvalidType for anything else."""
    if not isinstance(queryset, models.QuerySet):
        raise InvalidType(
            f"expected a queryset such as Voucher.objects.filter(used=False), got {type(queryset).__name__}. "
            "Nothing was written."
        )
    copy: Any = queryset.all()
    return copy.using(copy._db or router.db_for_write(copy.model))  # type: ignore[no-any-return]


def gives_other_rows(queryset: Any) -> bool:
    """Whether it gives anything but rows of one table: values, unions, distinct rows, groups."""
    query = queryset.query
    return bool(queryset._fields is not None or query.combinator or query.distinct or query.group_by is not None)


def filters_by_window(query: Any) -> bool:
    """Whether a window function decides which rows there are."""
    return _windowed(query.where)


def _windowed(part: Any) -> bool:
    return bool(getattr(part, "contains_over_clause", False))


def check_changes(model: type[models.Model], changes: object) -> Mapping[str, object]:
    """`changes` if it names columns of `model`, other than its key."""
    if not isinstance(changes, Mapping):
        raise InvalidType(f"changes must be a dict of field names, got {type(changes).__name__}. Nothing was written.")
    if not changes:
        raise InvalidValue("changes is empty, so a row could be handed out twice. Nothing was written.")
    for name in changes:
        try:
            field: Any = model._meta.get_field(name) if isinstance(name, str) else None
        except FieldDoesNotExist:
            field = None
        if field is None or not field.concrete or field.many_to_many or field.primary_key:
            raise InvalidValue(
                f"changes: {name!r} is not a column of {model.__name__} that can be set. Nothing was written."
            )
    return changes
