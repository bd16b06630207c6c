"""Lock tables: rows that transactions lock, and leases that outlive transactions."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, TokenField, UtcDateTimeField
from jobqueue.names import LOCK_CHARS


class MutexRow(models.Model):
    """Something to lock for a key, made on demand by jobqueue.locks.mutex(). May be deleted at any time."""

    lock_key = NameField(_("lock key"), max_length=LOCK_CHARS, primary_key=True)
    # Every holder adds one: a transaction whose snapshot shows an older number must not believe its reads.
    takes = models.BigIntegerField(_("times taken"), default=0, db_default=0)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())

    class Meta:
        db_table = "job_mutex"
        verbose_name = _("mutex")
        verbose_name_plural = _("mutexes")

    def __str__(self) -> str:
        return str(self.lock_key)


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
        indexes = [
            # sweep(): free locks, oldest first
            models.Index(fields=["expires_at"], name="ix_lock_expiry"),
        ]

    def __str__(self) -> str:
        return str(self.lock_key)


class LockFloor(models.Model):
    """One row: no deleted lock had a fence above this one, so a lock that is made anew begins beyond it."""

    id = models.SmallIntegerField(primary_key=True)
    fence = models.BigIntegerField(_("fence"))

    class Meta:
        db_table = "job_lock_floor"
        verbose_name = _("lock floor")
        verbose_name_plural = _("lock floors")

    def __str__(self) -> str:
        return str(self.fence)
