"""Numbers for sale, and the answers to buyers."""

from django.db import models

from jobqueue.fencing import FencedModel


class SerialNumber(FencedModel):
    """A number that may be sold once. Its fence is that of the Redis lock under which it was sold, or 0."""

    id = models.CharField(max_length=32, primary_key=True)
    is_used = models.BooleanField(default=False)
    used_by = models.CharField(max_length=64, default="")
    created_date = models.DateTimeField(auto_now_add=True)

    class Meta:
        # One index for filter and order, so that a statement locks only the row that it takes.
        indexes = [models.Index(fields=["is_used", "id"], name="ix_serial_free")]

    def __str__(self) -> str:
        return self.id


class Sale(models.Model):
    """One answer to one buyer: request `request_id` was given number `serial_id`."""

    strategy = models.CharField(max_length=32)
    request_id = models.CharField(max_length=64)
    serial_id = models.CharField(max_length=32)
    process = models.IntegerField()

    class Meta:
        indexes = [models.Index(fields=["strategy", "serial_id"], name="ix_sale_serial")]

    def __str__(self) -> str:
        return f"{self.serial_id} to {self.request_id} by {self.strategy}"
