"""The cause of an error of the operating system, by its errno."""

from __future__ import annotations

import errno

from jobqueue.failures.vocabulary import FailureCause

_RESOURCE = (
    # disk, files, memory, processes of this host
    "ENOSPC EDQUOT EFBIG EROFS EIO ESTALE EMFILE ENFILE ENOMEM ENOBUFS EAGAIN EBUSY ETXTBSY ENOLCK EDEADLK EINTR "
    # what this host does not allow the worker: another host may
    "EACCES EPERM "
    # no port is free here
    "EADDRINUSE EADDRNOTAVAIL"
)
_DEPENDENCY = (
    "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ESHUTDOWN ENOTCONN ETIMEDOUT EHOSTUNREACH EHOSTDOWN "
    "ENETUNREACH ENETDOWN ENETRESET ENONET EREMOTEIO ECOMM EPROTO ENOLINK"
)
# The path or the value is wrong, on any host.
_DATA = "ENOENT EEXIST EISDIR ENOTDIR ENOTEMPTY ENAMETOOLONG ELOOP EXDEV EINVAL EILSEQ EBADF ESPIPE E2BIG ENOEXEC"

_BY_ERRNO = {
    number: cause
    for names, cause in (
        (_DATA, FailureCause.DATA),
        (_DEPENDENCY, FailureCause.DEPENDENCY),
        (_RESOURCE, FailureCause.RESOURCE),
    )
    for name in names.split()
    # Not every system has all of them.
    if (number := getattr(errno, name, None)) is not None
}


def by_errno(error: BaseException) -> FailureCause | None:
    """The cause of an OSError; None without an errno that says one."""
    number = getattr(error, "errno", None)
    return _BY_ERRNO.get(number) if isinstance(number, int) else None


def by_exit_status(error: BaseException) -> FailureCause | None:
    """RESOURCE for a subprocess that a signal has killed, as for want of memory. What a status means is its own."""
    status = getattr(error, "returncode", None)
    return FailureCause.RESOURCE if isinstance(status, int) and status < 0 else None
