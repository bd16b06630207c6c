"""The result for each file, and evidence of each effect."""

from django.db import models


class SourceFile(models.Model):
    """One file of one demo run. `effects` counts the jobs whose writes were committed; it must be 1."""

    path = models.CharField(max_length=255, unique=True)
    run = models.CharField(max_length=32)
    lines = models.IntegerField(default=0)
    words = models.IntegerField(default=0)
    sha256 = models.CharField(max_length=64, default="")
    effects = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.path


class Effect(models.Model):
    """Append-only evidence: one row per committed effect, with the attempt that made it."""

    path = models.CharField(max_length=255)
    run = models.CharField(max_length=32)
    job_id = models.BigIntegerField()
    attempt = models.IntegerField()
    fence = models.BigIntegerField()
    pid = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.path} by job {self.job_id}, attempt {self.attempt}"
