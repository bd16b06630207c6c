"""What producers and jobs of a trial commit together with the queue's own rows."""

from django.db import models


class Intent(models.Model):
    """What a producer has committed together with a job, a group or an event. `number` is its own or the group's."""

    kind = models.CharField(max_length=16)
    number = models.BigIntegerField()
    job = models.BigIntegerField(null=True)
    key = models.CharField(max_length=32, default="")
    #: of its key: positions grow in the order of the commits
    position = models.BigIntegerField(null=True)

    def __str__(self):
        return f"{self.kind} {self.number}: job {self.job}, key {self.key}, position {self.position}"


class Effect(models.Model):
    """What a job has done, committed with its end. Unique nowhere: a second one must show."""

    kind = models.CharField(max_length=16)
    number = models.BigIntegerField()
    job = models.BigIntegerField()
    key = models.CharField(max_length=32, default="")
    position = models.BigIntegerField(null=True)
    #: the host's clock, before the commit
    at = models.FloatField()

    def __str__(self):
        return f"{self.kind} {self.number} of job {self.job}"


class Count(models.Model):
    """A number by name."""

    name = models.CharField(max_length=32, primary_key=True)
    value = models.BigIntegerField(default=0)

    def __str__(self):
        return f"{self.name}: {self.value}"
