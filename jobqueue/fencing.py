"""FencedModel refuses late writes to your own tables: a row stores the highest fence that wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from django.db import IntegrityError, connections, models, router, transaction
from django.db.models import F

from jobqueue.base.validation import shown
from jobqueue.db import vendor
from jobqueue.exceptions import InvalidType, InvalidValue, StaleFence

FENCE_MAX = 2**63 - 1


class HasFence(Protocol):
    """A lock of jobqueue.locks, the context of a job or a Lease."""

    @property
    def fence(self) -> int:
        """A number that grows with every holder."""


def fence_of(source: int | HasFence) -> int:
    """The fence of a lock, lease or job context, or the number itself. Raises InvalidType, InvalidValue."""
    fence = source if isinstance(source, int) else getattr(source, "fence", None)
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise InvalidType(
            f"a fence must be an int or something with a fence, such as a lock or current_job(), got "
            f"{type(source).__name__}. Nothing was written."
        )
    if not 0 < fence <= FENCE_MAX:
        raise InvalidValue(f"a fence is above 0 and has 63 bits, got {shown(fence)}. Nothing was written.")
    return fence


if TYPE_CHECKING:
    _QuerySet = models.QuerySet[models.Model]
    _Field = models.BigIntegerField[int, int]
else:
    # Generic in their type stubs only.
    _QuerySet, _Field = models.QuerySet, models.BigIntegerField


class FencedQuerySet(_QuerySet):
    """A queryset of a FencedModel."""

    def fenced_update(self, fence: int | HasFence, /, **changes: Any) -> int:
        """update(**changes) under `fence`; the number of rows.

        Raises StaleFence if a newer fence has written any of the rows, and then nothing is written.
        """
        number = fence_of(fence)
        rows: Any = self.all()
        with transaction.atomic(using=rows._db or router.db_for_write(self.model)):
            # Write first, then check: a read would not wait for a holder that is writing now.
            count: int = rows.filter(fence__lte=number).update(**changes, fence=number)
            newer = rows.order_by().filter(fence__gt=number).select_for_update().values_list("fence", flat=True)
            refuse_newer(number, list(newer), self.model)
        return count


class FenceField(_Field):
    """The highest fence that has written the row. An ordinary save() does not change it."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """The column itself, unless the instance is saved under a fence: its own value may be old."""
        if add or getattr(model_instance, "_fenced", False):
            return super().pre_save(model_instance, add)
        return F(self.attname)


class FencedModel(models.Model):
    """Adds the column `fence`, `objects.filter(...).fenced_update(lock, ...)` and `row.fenced_save(lock)`.

    All fences of one row must come from one source: one lock name, or the runs of one job. Ordinary writes are not
    refused and do not change the fence.
    """

    fence = FenceField(default=0, db_default=0, editable=False)

    objects: ClassVar[Any] = FencedQuerySet.as_manager()

    class Meta:
        abstract = True

    def fenced_save(self, fence: int | HasFence, *, using: str | None = None, **options: Any) -> None:
        """save(**options) under `fence`. Raises StaleFence, without a write, if a newer fence has written the row."""
        number = fence_of(fence)
        alias = using or router.db_for_write(type(self), instance=self)
        fields = options.pop("update_fields", None)
        if fields is not None:
            options["update_fields"] = {*fields, "fence"}
        try:
            self._save_under(number, alias, options)
        except IntegrityError:
            if options.get("force_insert"):
                raise
            # Another writer may have inserted the row in between: then it has a fence to compare with.
            self._save_under(number, alias, options)

    def _save_under(self, number: int, alias: str, options: dict[str, Any]) -> None:
        before = self.fence
        with vendor(alias).transaction(connections[alias]):
            rows = type(self)._base_manager.using(alias).filter(pk=self.pk).select_for_update()
            stored = list(rows.values_list("fence", flat=True))
            refuse_newer(number, [found for found in stored if found > number], type(self))
            if not stored and not options:
                # Without force_insert save() would update a row that was inserted in between, whatever its fence.
                options = {"force_insert": True}
            self.fence, self._fenced = number, True
            try:
                self.save(using=alias, **options)
            except BaseException:
                self.fence = before
                raise
            finally:
                del self._fenced


def refuse_newer(fence: int, newer: list[int], model: type[models.Model]) -> None:
    """Raise StaleFence if `newer` has a fence."""
    if newer:
        raise StaleFence(
            f"{model.__name__}: fence {fence} is older than {max(newer)}, which has written here already: the lock was "
            "lost and somebody else went on. Nothing was written; give up this piece of work."
        )
