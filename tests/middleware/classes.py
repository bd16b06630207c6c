"""Middleware of the tests."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

tenant: ContextVar[str] = ContextVar("tenant", default="none")
#: what the classes have seen, in order
seen: list = []


class Tenant:
    """Carries the tenant of the caller over to the run."""

    def enqueue(self, job, next):
        job.context["tenant"] = tenant.get()
        return next()

    def run(self, job, next):
        mark = tenant.set(job.context["tenant"])
        try:
            return next()
        finally:
            tenant.reset(mark)

    async def arun(self, job, next):
        mark = tenant.set(job.context["tenant"])
        try:
            return await next()
        finally:
            tenant.reset(mark)


class _Noted:
    name = ""

    def enqueue(self, job, next):
        seen.append((self.name, "enqueue", job.task, job.queue, list(job.args), job.kwargs))
        next()
        seen.append((self.name, "enqueued"))

    def run(self, job, next):
        seen.append((self.name, "run", job.job_id))
        value = next()
        seen.append((self.name, "ran"))
        return value

    async def arun(self, job, next):
        seen.append((self.name, "arun", job.job_id))
        value = await next()
        seen.append((self.name, "aran"))
        return value


class Outer(_Noted):
    name = "outer"


class Inner(_Noted):
    name = "inner"


class Sets:
    """Its `context` becomes that of each job."""

    context: object = None

    def enqueue(self, job, next):
        job.context = Sets.context
        return next()


class Refuses:
    def enqueue(self, job, next):
        if tenant.get() == "none":
            raise ValueError("no tenant")
        return next()


class Forgets:
    def enqueue(self, job, next):
        return None


class Repeats:
    def enqueue(self, job, next):
        next()
        return next()


class ForgetsRun:
    def run(self, job, next):
        return "not run"


class Doubles:
    def run(self, job, next):
        return next() * 2


class Raises:
    error: BaseException = ValueError()

    def run(self, job, next):
        raise Raises.error


class Lasts:
    """Does what the test says before the task runs, or after it."""

    before: Callable[[], object] = staticmethod(lambda: None)
    after: Callable[[], object] = staticmethod(lambda: None)

    def run(self, job, next):
        Lasts.before()
        found = next()
        Lasts.after()
        return found

    async def arun(self, job, next):
        # Until it is canceled.
        await asyncio.Event().wait()
        return await next()


class OnlyRun:
    def run(self, job, next):
        return next()


class AsyncRun:
    async def run(self, job, next):
        return await next()


class SyncArun:
    def arun(self, job, next):
        return next()


class NoMethods:
    pass


class NeedsArguments:
    def __init__(self, name):
        pass

    def run(self, job, next):
        return next()


a_function = print
