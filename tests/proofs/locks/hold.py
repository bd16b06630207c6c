"""python -m tests.proofs.locks.hold KIND TTL_SECONDS ACCOUNT: hold the lock, and at a word from outside write late.

Says "held FENCE", waits for a line, then says what became of a fenced write and of the release.
"""

from __future__ import annotations

import sys

from tests.proofs.locks.kinds import holding, set_up


def main(kind: str, ttl_seconds: float, account: int) -> None:
    """Each answer is the name of an exception, or "done"."""
    set_up()
    from tests.app.models import Account

    with_lock = holding(kind, ttl_seconds)
    lock = with_lock.__enter__()
    print(f"held {getattr(lock, 'fence', 0)}", flush=True)
    sys.stdin.readline()
    attempt(lambda: Account.objects.filter(pk=account).fenced_update(lock, balance=-1))
    attempt(lock.release)


def attempt(call) -> None:
    """Do it and say how it went."""
    try:
        call()
    except Exception as error:
        print(type(error).__name__, flush=True)
    else:
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
