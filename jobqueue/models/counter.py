"""Counters that many write at once: several rows for one number."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.base.validation import LOCK_CHARS
from jobqueue.db.fields import NameField

#: the key of the rows for deleted locks, which no counter can have: models/locks.py
DELETED_LOCKS = ""


class CounterShard(models.Model):
    """One part of a counter, made on demand by jobqueue.counter; the counter is the sum of its parts.

    The parts of DELETED_LOCKS are numbers of their own.
    """

    # The key first: value() reads one short range of the primary key.
    pk = models.CompositePrimaryKey("counter_key", "shard")
    counter_key = NameField(_("counter"), max_length=LOCK_CHARS)
    shard = models.SmallIntegerField(_("shard"))
    total = models.BigIntegerField(_("total"), default=0, db_default=0)

    class Meta:
        db_table = "job_counter"
        verbose_name = _("counter part")
        verbose_name_plural = _("counter parts")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.counter_key} #{self.shard}"
