"""Whether the strategies that need Redis can run."""

from django.conf import settings

from jobqueue.locks import redis_lock


def redis_missing() -> str:
    """The reason why no lock can be taken from REDIS_URL; "" if one can."""
    if not settings.REDIS_URL:
        return "no REDIS_URL"
    try:
        with redis_lock("jobqueue-demo test", 1):
            return ""
    except Exception as error:
        return f"no lock from REDIS_URL ({type(error).__name__})"
