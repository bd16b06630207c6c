"""Hints for people who know other task queues: names that a task here does not have, and what to write instead."""

from __future__ import annotations

_LATER = "run_after=timezone.now() + timedelta(seconds=60)"
_TRIES = "max_attempts=5"
_WAIT = "backoff=Backoff(base_seconds=30)"
_LIMIT = "timeout_seconds=60"
_ONCE = 'dedupe_key="..."'

#: option of another queue -> the field of @task and using()
_OPTIONS = {
    **dict.fromkeys(["countdown", "delay", "schedule_in"], _LATER),
    **dict.fromkeys(["eta", "schedule", "schedule_at", "run_at"], "run_after=an_aware_datetime"),
    **dict.fromkeys(["retries", "max_retries", "retry", "max_tries"], _TRIES),
    **dict.fromkeys(["retry_backoff", "retry_delay", "default_retry_delay", "min_backoff"], _WAIT),
    **dict.fromkeys(["soft_time_limit", "timeout", "job_timeout"], _LIMIT),
    **dict.fromkeys(["task_id", "job_id", "queueing_lock"], _ONCE),
    "time_limit": "hard_timeout_seconds=60",
    "autoretry_for": "retry_on=[SomeError]",
    "dont_autoretry_for": "no_retry_on=[SomeError]",
    "queue": 'queue_name="mail"',
    "lock": 'ordering_key="..."',
}
#: option of another queue -> what @task has for it
_OF_THE_TASK = {
    **dict.fromkeys(["bind", "pass_context", "context"], "@task(takes_context=True), with context as first parameter"),
    **dict.fromkeys(["acks_late", "reject_on_worker_lost", "ignore_result", "serializer"], "nothing instead"),
    "name": "nothing instead: the name of a task is the path of its function, and aliases=[...] keeps earlier paths",
}
_COMMIT = "{name}.enqueue(...) inside the transaction: the job is added if and only if it commits"
_CHAIN = "workflow('name').add({name}, ...), or group('name') for jobs without an order"
_EACH = "{name}.enqueue_many([(1,), (2,)]), with the arguments of each job"
#: method of a task of another queue -> what to write
_METHODS = {
    **dict.fromkeys(["delay", "send", "defer"], "{name}.enqueue(...)"),
    **dict.fromkeys(
        ["apply_async", "send_with_options", "schedule", "enqueue_at", "enqueue_in", "configure"],
        f"{{name}}.enqueue(...), or with options {{name}}.using({_LATER}).enqueue(...)",
    ),
    **dict.fromkeys(["delay_on_commit", "apply_async_on_commit"], _COMMIT),
    **dict.fromkeys(["apply", "call_local", "run", "fn"], "{name}.call(...), which runs the function here and now"),
    **dict.fromkeys(["s", "si", "signature", "subtask", "then", "message"], _CHAIN),
    **dict.fromkeys(["map", "starmap", "chunks"], _EACH),
    "AsyncResult": "{name}.get_result(result_id)",
    "retry": "raise Retry(after_seconds=30) in the function; any other error is retried too, up to max_attempts",
}


def option_advice(option: str, call: str) -> str | None:
    """What to write instead of an option of another queue, as an argument of `call`; None for other words."""
    if (field := _OPTIONS.get(option)) is not None:
        first = ", where the first attempt counts" if field is _TRIES else ""
        return f"write {call}({field}){first}"
    instead = _OF_THE_TASK.get(option)
    return None if instead is None else f"write {instead}"


def method_advice(method: str, function: str) -> str | None:
    """What to write instead of a method of a task of another queue; None for other words."""
    instead = _METHODS.get(method)
    return None if instead is None else f"write {instead.format(name=function)}"
