"""The last lines of the demo: two sentences of verdict, and what to try next."""

from collections.abc import Collection, Sequence

from demo_project.demo.proof import Proof

#: stage -> what was killed in it; what could have been lost
_KILLED = {"files": "a worker process", "orders": "a relay"}
_THINGS = {
    "files": "job",
    "orders": "order",
    "numbers": "serial number",
    "parcels": "parcel",
    "outage": "payment",
    "month": "invoice",
}

NEXT = """What to try next:
  make serve                           200 jobs in the admin; it prints the address and the login
  docs/tutorial/first-job.md           a job of your own, in ten minutes
  DATABASE_URL=mysql://... make demo   the same on MySQL, MariaDB or PostgreSQL (.env.example)"""


def verdict(stages: Collection[str], proofs: Sequence[Proof], place: str) -> str:
    """What the proofs say of these stages; `place` is where their rows are."""
    wrong = [proof.claim for proof in proofs if not proof.holds]
    if wrong:
        return (
            f"Something was lost or done twice, or another program wrote to {place} meanwhile: see {'; '.join(wrong)}. "
            "If nothing else used it, this is a bug: please report it with all lines above."
        )
    things = _list([_THINGS[stage] for stage in stages], "or")
    killed = _list([_KILLED[stage] for stage in stages if stage in _KILLED], "and")
    although = f", although {killed} {'were' if ' and ' in killed else 'was'} killed with SIGKILL" if killed else ""
    return (
        f"No {things} was lost or done twice{although}. The rows are in {place}, where you can look at them until the "
        "next run."
    )


def gave_up(stage: str, cause: str, seconds: float, hint: str) -> str:
    """Why nothing is proved about the stage, and what to do."""
    return (
        f"The demo gave up after {seconds:.0f} s, at the stage {stage!r}, so it proves nothing about it. Cause: {cause}"
        f"\n{hint}"
    )


def _list(words: Sequence[str], last: str) -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
