"""The end of a month: a schedule adds the job that makes a group, whose callback reports."""

import os
import tempfile
from pathlib import Path

from jobqueue import current_job, group, groups, task

CUSTOMERS = 100


@task(queue_name="billing")
def close_month(month: str, customers: int = CUSTOMERS) -> int | None:
    """Make the group that invoices each customer, and return its id; None for a month that has one."""
    name = f"invoices {month}"
    # The schedule lets no two of these jobs run at once.
    if any(known.name == name for known in groups.known(limit=1000)):
        return None
    with group(name, data={"month": month}, on_success=report) as invoices:
        invoices.add_many(invoice, [(month, number) for number in range(customers)])
    return invoices.id


@task(queue_name="billing")
def invoice(month: str, number: int) -> int:
    """Write the invoice of a customer."""
    _append(month, f"invoice {number}")
    return number


@task(queue_name="billing")
def report() -> int:
    """The callback: all invoices of the group are written."""
    invoices = current_job().group
    assert invoices is not None
    done = invoices.done
    _append(invoices.data["month"], f"report of {done}")
    return done


def book(month: str) -> Path:
    """The file to which each job appends a line."""
    return Path(tempfile.gettempdir(), f"jobqueue-demo-{month}.txt")


def _append(month: str, line: str) -> None:
    # One write, so that lines of several processes do not mix.
    file = os.open(book(month), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
