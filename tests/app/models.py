"""Tables of the host app, which the product under test knows nothing about."""

from django.db import models


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
