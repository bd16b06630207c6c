"""classify(): the cause class of whatever a job has raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jobqueue.failures.known import by_rules, classes
from jobqueue.failures.project import own_rule
from jobqueue.failures.vocabulary import FailureCause

#: how many exceptions of one chain, and of one group, are looked at
CHAIN_MAX, GROUP_MAX = 50, 1000
#: which cause a group has, if several are as frequent
_TIES = (FailureCause.RESOURCE, FailureCause.DEPENDENCY, FailureCause.DATA)

# Through the base class: a subclass may have properties of these names, which raise.
_CAUSE, _CONTEXT = BaseException.__dict__["__cause__"], BaseException.__dict__["__context__"]
_SUPPRESSED = BaseException.__dict__["__suppress_context__"]
_MEMBERS = BaseExceptionGroup.__dict__["exceptions"]

#: rules of a project, by class path; the first mapping that names a class of the MRO decides
Own = Sequence[Mapping[str, FailureCause]]


def classify(error: BaseException | str, own: Own = ()) -> FailureCause:
    """The cause class of an exception; UNKNOWN for text, and for what no rule names.

    The outermost exception that a rule of `own` or of this package names decides. One without a rule defers to its
    __cause__, then to its __context__ unless that is suppressed; a group first to the most frequent cause in it.
    """
    if not isinstance(error, BaseException):
        return FailureCause.UNKNOWN
    for found in _chain(error):
        cause = _named(found, own)
        if cause is None and _is_group(found):
            cause = _of_group(found, own)
        if cause is not None:
            return cause
    return FailureCause.UNKNOWN


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, and what it was raised from, each once."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen and len(seen) < CHAIN_MAX:
        seen.add(id(found))
        yield found
        before = _CAUSE.__get__(found)
        found = before if before is not None or _SUPPRESSED.__get__(found) else _CONTEXT.__get__(found)


def _named(error: BaseException, own: Own) -> FailureCause | None:
    """The cause by the nearest class of the MRO that has a rule; rules of the project precede all others."""
    for rules in own:
        for kind, path in classes(error) if rules else ():
            if (cause := own_rule(rules, kind, path)) is not None:
                return cause
    return by_rules(error)


def _is_group(error: BaseException) -> bool:
    # isinstance() would ask for __class__, which may be a property that raises.
    return issubclass(type(error), BaseExceptionGroup)


def _of_group(group: BaseException, own: Own) -> FailureCause | None:
    counts: Counter[FailureCause] = Counter()
    waiting: list[BaseException] = [group]
    for _ in range(GROUP_MAX):
        if not waiting:
            break
        error = waiting.pop()
        if _is_group(error) and (error is group or _named(error, own) is None):
            waiting += _MEMBERS.__get__(error)[:GROUP_MAX]
            continue
        causes = (_named(found, own) for found in _chain(error))
        counts.update([next((cause for cause in causes if cause is not None), FailureCause.UNKNOWN)])
    del counts[FailureCause.UNKNOWN]
    if not counts:
        return None
    most = max(counts.values())
    best = [cause for cause, count in counts.items() if count == most]
    return next((cause for cause in _TIES if cause in best), best[0])
