"""Flow control: what operators set for queues and tasks, and which jobs wait at a gate for it."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import JobIdField, NameField, UtcDateTimeField
from jobqueue.models.job import DEPENDENCY_CHARS


class FlowRule(models.Model):
    """What an operator has set for a queue, or for a task in it: a pause or drain, and limits."""

    class Mode(models.TextChoices):
        """DRAINING: producers are refused, and what is there is worked off. It is of whole queues only."""

        RUNNING = "", _("running")
        PAUSED = "paused", _("paused")
        DRAINING = "draining", _("draining")

    queue = NameField(_("queue"), max_length=64)
    # "": the whole queue.
    task = NameField(_("task"), max_length=255, default="", db_default="")
    mode = NameField(_("mode"), max_length=16, choices=Mode.choices, default=Mode.RUNNING, db_default="")
    reason = NameField(_("reason"), max_length=200, default="", db_default="")
    by = NameField(_("by"), max_length=150, default="", db_default="")
    since = UtcDateTimeField(_("since"), null=True)
    # A pause ends by itself then; NULL: only resume() ends it.
    until = UtcDateTimeField(_("until"), null=True)
    # Whether the next column counts, instead of the settings; NULL there means no limit.
    sets_concurrency = models.BooleanField(_("sets concurrency"), default=False, db_default=False)
    concurrency = models.IntegerField(_("concurrency"), null=True)
    sets_rate = models.BooleanField(_("sets rate"), default=False, db_default=False)
    rate = NameField(_("rate"), max_length=20, null=True)
    # Where CONCURRENCY is (least, most): the present limit.
    level = models.IntegerField(_("present concurrency"), null=True)
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())

    class Meta:
        db_table = "job_flow"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = [("pause_queue", "Can pause, drain and resume queues"), ("change_limits", "Can change limits")]
        constraints = [models.UniqueConstraint(fields=["queue", "task"], name="uq_flow_queue_task")]

    def __str__(self) -> str:
        return f"{self.task} in queue {self.queue}" if self.task else f"queue {self.queue}"


class Gate(models.Model):
    """Something that jobs wait for, other than their ordering key: a slot, a token, a breaker, a task's pause.

    Locked by those who take tokens. A gate without a row is free and has a full bucket.
    """

    # A number of kind and name: jobqueue.gates.limits.
    subject = models.BigIntegerField(_("subject"), primary_key=True)
    # The wait_reason of jobs that wait here: a code and its subject.
    wait_reason = NameField(_("wait reason"), max_length=200)
    # Of the job that was last put behind it; NULL: the gate of a dependency.
    queue = NameField(_("queue"), max_length=64, null=True)
    task = NameField(_("task"), max_length=255, null=True)
    # How many slots it had when a job was last put behind it; NULL: it has none.
    most = models.IntegerField(_("slots"), null=True)
    # Of a rate: starts per second, and the instant up to which the tokens are used: the theoretical arrival time of the
    # generic cell rate algorithm.
    per_second = models.FloatField(_("starts per second"), null=True)
    used_until = UtcDateTimeField(_("used until"), null=True)
    # When jobs that wait may be opened without anything happening; NULL: an event opens them.
    opens_at = UtcDateTimeField(_("opens at"), null=True)
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())

    class Meta:
        db_table = "job_gate"
        verbose_name = _("gate")
        verbose_name_plural = _("gates")
        default_permissions = ("view",)
        indexes = [
            # gates.opening: those whose time has come
            models.Index(fields=["opens_at"], name="ix_gate_opens"),
            # maintenance.cleaner: those that nobody has used for long
            models.Index(fields=["updated_at"], name="ix_gate_age"),
        ]

    def __str__(self) -> str:
        return str(self.wait_reason)


class GateSlot(models.Model):
    """A slot of a limit that a lease has. Its number is below the limit, so that no more can be taken than there are.

    It counts only while the job is PROCESSING with this fence: a lease that ends, however it ends, frees its slot.
    """

    pk = models.CompositePrimaryKey("subject", "number")
    subject = models.BigIntegerField(_("subject"))
    number = models.IntegerField(_("number"))
    job_id = JobIdField(_("job"))
    fence = models.BigIntegerField(_("fence"))

    class Meta:
        db_table = "job_gate_slot"
        verbose_name = _("slot")
        verbose_name_plural = _("slots")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"slot {self.number}: job {self.job_id}"


class GateWait(models.Model):
    """A READY job behind a gate, in the order in which those of one subject are opened."""

    job_id = JobIdField(_("job"), primary_key=True)
    subject = models.BigIntegerField(_("subject"))
    # Those of the job, so that a look for the first ones reads no others. `urgency` is -priority.
    urgency = models.BigIntegerField(_("urgency"))
    run_at = UtcDateTimeField(_("run at"))

    class Meta:
        db_table = "job_gate_wait"
        verbose_name = _("waiting job")
        verbose_name_plural = _("waiting jobs")
        default_permissions = ("view",)
        indexes = [
            # gates.opening: the first ones of a subject
            models.Index(fields=["subject", "urgency", "run_at", "job_id"], name="ix_gate_wait"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id}"


class BreakerState(models.Model):
    """The circuit breaker of a dependency, shared by all workers. A dependency without a row is closed."""

    class State(models.TextChoices):
        """HALF_OPEN: a probe runs. The next state follows from how it ends."""

        CLOSED = "closed", _("closed")
        OPEN = "open", _("open")
        HALF_OPEN = "half-open", _("half-open")

    dependency = NameField(_("dependency"), max_length=DEPENDENCY_CHARS, primary_key=True)
    state = NameField(_("state"), max_length=16, choices=State.choices, default=State.CLOSED, db_default="closed")
    reason = NameField(_("reason"), max_length=200, default="", db_default="")
    # Failures in the present window, and when the window began.
    failures = models.IntegerField(_("failures"), default=0, db_default=0)
    window_at = UtcDateTimeField(_("window began at"), null=True)
    since = UtcDateTimeField(_("since"), null=True)
    # Opened by hand until then; NULL with `by_hand`: until close().
    by_hand = models.BooleanField(_("by hand"), default=False, db_default=False)
    until = UtcDateTimeField(_("until"), null=True)
    probe_at = UtcDateTimeField(_("next probe at"), null=True)
    # The lease of the probe; it is over when the job no longer has this fence or is no longer PROCESSING.
    probe_job = JobIdField(_("job of the probe"), null=True)
    probe_fence = models.BigIntegerField(_("fence of the probe"), null=True)
    # Changes with each change of the state, so that results of older runs do not count.
    turn = models.IntegerField(_("turn"), default=0, db_default=0)
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())

    class Meta:
        db_table = "job_breaker"
        verbose_name = _("circuit breaker")
        verbose_name_plural = _("circuit breakers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"breaker {self.dependency}"
