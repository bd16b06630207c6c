"""Arguments of enqueue() are checked against the task's function, and those of a raw job by their names and types."""

from jobqueue import enqueue, enqueue_many, task
from jobqueue.tasks.results import JobTaskContext


@task
def plain(order_id: int, *, note: str = "") -> str:
    return f"{order_id} {note}"


@task(queue_name="mail", retry_on=(ConnectionError,), expires=60)
def with_fields(order_id: int) -> int:
    return order_id


@task(takes_context=True)
def with_context(context: JobTaskContext, order_id: int) -> int:
    return context.attempt + order_id


def calls() -> None:
    """What may be written, and what may not."""
    plain.enqueue(1, note="x")
    plain.using(priority=3).enqueue(1)
    with_context.enqueue(1)
    value: str | None = plain.enqueue(1).return_value
    number: int | None = with_fields.using(dedupe_key=lambda order_id: f"k{order_id}").enqueue(2).return_value
    print(value, number)
    plain.enqueue("1")  # type: ignore[arg-type]
    plain.enqueue()  # type: ignore[call-arg]
    with_fields.enqueue(1, note="x")  # type: ignore[call-arg]
    with_fields.using(version=2)  # type: ignore[call-arg]
    with_context.enqueue("1")  # type: ignore[arg-type]
    task(retries=3)(lambda: None)  # type: ignore[call-overload]


def raw_jobs() -> None:
    """What raw jobs take."""
    job_id: int = enqueue("q", {"n": 1}, priority=3, run_at=None, dedupe_key=b"k", max_attempts=5, using="default")
    ids: list[int] = enqueue_many("q", [1, 2], ordering_key="o", dedupe_keys=["a", None], max_attempts=None)
    print(job_id, ids)
    enqueue("q", 1, priority="high")  # type: ignore[arg-type]
    enqueue("q", 1, priorty=3)  # type: ignore[call-arg]
    enqueue_many("q", [1], dedupe_key="k")  # type: ignore[call-arg]


async def awaited() -> None:
    """The same on an event loop."""
    made = await plain.using(queue_name="mail").aenqueue(1, note="x")
    await made.arefresh()
    text: str | None = (await plain.aget_result(made.id)).return_value
    number: int | None = (await with_fields.using(expires=60, ack_each=True).aenqueue(2)).return_value
    print(text, number)
    await plain.aenqueue("1")  # type: ignore[arg-type]
    await with_fields.aenqueue(1, note="x")  # type: ignore[call-arg]
    await with_context.using(priority=3).aenqueue("1")  # type: ignore[arg-type]
    with_fields.using(expire=60)  # type: ignore[call-arg]
    with_fields.using(ack_each="yes")  # type: ignore[arg-type]
