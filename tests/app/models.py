"""Tables of the host app, which the product under test knows nothing about."""

from django.db import models

from jobqueue.fencing import FencedModel


class Ticket(models.Model):
    """Something that may be handed out once."""

    number = models.CharField(max_length=20, unique=True)
    sold = models.BooleanField(default=False)
    buyer = models.CharField(max_length=50, default="")
    sold_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["sold", "number"], name="ix_ticket_free")]

    def __str__(self):
        return self.number


class Account(FencedModel):
    """Something that several processes write, one at a time."""

    owner = models.CharField(max_length=20, default="")
    balance = models.IntegerField(default=0)
    changed_at = models.DateTimeField(auto_now=True)

    def __str__(self):
        return self.owner
