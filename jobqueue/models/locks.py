"""Lock tables: rows that transactions lock, and leases that outlive transactions."""

from __future__ import annotations

from typing import Any

from django.db import models, router, transaction
from django.utils.translation import gettext_lazy as _

from jobqueue.base.validation import LOCK_CHARS
from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, TokenField, UtcDateTimeField
from jobqueue.db.upsert import upsert
from jobqueue.models.counter import DELETED_LOCKS, CounterShard

#: parts of DELETED_LOCKS: no deleted lease lock had a fence above the first number, so one that is made anew begins
#: beyond it; the second one says how often rows of mutexes were deleted
LEASE_FLOOR, MUTEX_FLOOR = 1, 2


def floor(part: int, using: str) -> models.QuerySet[CounterShard]:
    """The row of one of them, if it was ever made."""
    return CounterShard.objects.using(using).filter(counter_key=DELETED_LOCKS, shard=part)


def add_to_floor(part: int, number: int, using: str) -> None:
    """Make or lock the row of one of them, and add a number, which may be 0."""
    upsert(CounterShard, [(DELETED_LOCKS, part, number)], keys=("counter_key", "shard"), added="total", using=using)


class MutexQuerySet(models.QuerySet["MutexRow"]):
    """Raises MUTEX_FLOOR with each deletion: in an older snapshot a row that is made again looks as if never taken."""

    def delete(self) -> tuple[int, dict[str, int]]:
        with transaction.atomic(using=self.db):
            add_to_floor(MUTEX_FLOOR, 1, self.db)
            return self.delete_only()

    def delete_only(self) -> tuple[int, dict[str, int]]:
        """Delete the rows only; the caller has raised the floor in the same transaction."""
        return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class MutexRow(models.Model):
    """Something to lock for a key, made on demand by jobqueue.locks.mutex(), and deleted when it has long been idle.

    Plain SQL that deletes rows must add one to `total` of the row ('', 2) of job_counter in the same transaction.
    """

    lock_key = NameField(_("lock key"), max_length=LOCK_CHARS, primary_key=True)
    # Every holder adds one: a transaction whose snapshot shows an older number must not believe its reads.
    takes = models.BigIntegerField(_("times taken"), default=0, db_default=0)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    # Without an index: every holder writes it. NULL = not since it was made.
    taken_at = UtcDateTimeField(_("taken at"), null=True)

    objects = MutexQuerySet.as_manager()

    class Meta:
        db_table = "job_mutex"
        verbose_name = _("mutex")
        verbose_name_plural = _("mutexes")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.lock_key)

    def delete(self, using: Any = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        alias = using or router.db_for_write(type(self), instance=self)
        return MutexRow.objects.using(alias).filter(pk=self.pk).delete()


class LockRow(models.Model):
    """One lease lock, held until expires_at by the database's clock; in the past = free. See jobqueue.locks."""

    lock_key = NameField(_("lock key"), max_length=LOCK_CHARS, primary_key=True)
    fence = models.BigIntegerField(_("fence"))
    owner = NameField(_("owner"), max_length=255)
    # Proves ownership; NULL once released.
    owner_token = TokenField(_("token"), null=True)
    acquired_at = UtcDateTimeField(_("acquired at"), db_default=UtcNow())
    expires_at = UtcDateTimeField(_("expires at"))

    class Meta:
        db_table = "job_lock"
        verbose_name = _("lock")
        verbose_name_plural = _("locks")
        default_permissions = ("view",)
        indexes = [
            # sweep(): free locks, oldest first. Not on PostgreSQL, see migration 0001.
            models.Index(fields=["expires_at"], name="ix_lock_expiry"),
        ]

    def __str__(self) -> str:
        return str(self.lock_key)
