"""classify(): the cause class of whatever a job has raised.

A rule is a class path and a cause, or a function that looks at the exception. A subclass follows its nearest base.
Paths are module and qualified name of the class itself (type.__module__, type.__qualname__), not of an alias. Classes
that say nothing (Exception, RuntimeError, BaseException) have no rule, so that what they were raised from decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jobqueue.failures.codes import (
    CLASSES,
    FailureCause,
    Rule,
    by_amqp,
    by_aws,
    by_database,
    by_errno,
    by_exit_status,
    by_grpc,
    by_http,
    by_kafka,
    by_mongo,
    by_redis,
    by_slack,
    by_smtp,
    by_soap,
    code_of,
)
from jobqueue.failures.project import own_rule

_DRIVERS = """
    django.db.utils.Error sqlite3.Error MySQLdb.Error MySQLdb._exceptions.MySQLError pymysql.err.MySQLError
    mysql.connector.errors.Error mariadb.Error psycopg.Error psycopg2.Error asyncpg.exceptions._base.PostgresError
    sqlalchemy.exc.DBAPIError oracledb.exceptions.Error
"""


def _by_reason(error: BaseException) -> FailureCause | None:
    """urllib's URLError: its reason is an exception, or a text that says what is wrong with the URL."""
    reason = getattr(error, "reason", None)
    if reason is error:
        return None
    if not isinstance(reason, BaseException):
        return FailureCause.DATA if str(reason).startswith(("unknown url type", "no host given")) else None
    return by_rules(reason) or FailureCause.DEPENDENCY


def _by_context(error: BaseException) -> FailureCause | None:
    """The cause of what a class was raised for that hides it in its message."""
    before = error.__cause__ or error.__context__
    return by_rules(before) if before is not None else None


def _either(*rules: Rule) -> Rule:
    """The first of `rules` that says a cause."""

    def decide(error: BaseException) -> FailureCause | None:
        for rule in rules:
            cause = rule if isinstance(rule, FailureCause) else rule(error)
            if cause is not None:
                return cause
        return None

    return decide


RULES: dict[str, Rule] = {
    **{path: cause for cause, paths in CLASSES.items() for path in paths.split()},
    **dict.fromkeys(_DRIVERS.split(), by_database),
    "builtins.OSError": by_errno,
    "urllib.error.URLError": _either(_by_reason, FailureCause.DEPENDENCY),
    "urllib.error.HTTPError": by_http,
    "requests.exceptions.HTTPError": by_http,
    "httpx.HTTPStatusError": by_http,
    "aiohttp.client_exceptions.ClientResponseError": by_http,
    "rest_framework.exceptions.APIException": by_http,
    "google.api_core.exceptions.GoogleAPICallError": _either(by_http, FailureCause.DEPENDENCY),
    **dict.fromkeys(
        ("stripe._error.StripeError", "stripe.error.StripeError"), _either(by_http, FailureCause.DEPENDENCY)
    ),
    # Without a status they are made from the body of an event, or by the client.
    **dict.fromkeys(
        (f"stripe.{module}.{name}" for module in ("_error", "error") for name in ("InvalidRequestError", "CardError")),
        _either(by_http, FailureCause.DATA),
    ),
    "twilio.base.exceptions.TwilioRestException": _either(by_http, FailureCause.DEPENDENCY),
    "azure.core.exceptions.HttpResponseError": _either(by_http, FailureCause.DEPENDENCY),
    "zeep.exceptions.TransportError": _either(by_http, FailureCause.DEPENDENCY),
    "zeep.exceptions.Fault": by_soap,
    "xmlrpc.client.ProtocolError": _either(by_http, FailureCause.DEPENDENCY),
    "pymongo.errors.OperationFailure": by_mongo,
    "slack_sdk.errors.SlackApiError": by_slack,
    "boto3.exceptions.S3UploadFailedError": _either(_by_context, FailureCause.DEPENDENCY),
    "openai.APIStatusError": by_http,
    # Both packages give their classes their own names for a module.
    **dict.fromkeys(
        (
            "elastic_transport.ApiError",
            "elastic_transport._exceptions.ApiError",
            "elasticsearch.ApiError",
            "elasticsearch.exceptions.ApiError",
            "elasticsearch.exceptions.TransportError",
        ),
        _either(by_http, FailureCause.DEPENDENCY),
    ),
    "opensearchpy.exceptions.TransportError": _either(by_http, FailureCause.DEPENDENCY),
    "botocore.exceptions.ClientError": _either(by_aws, FailureCause.DEPENDENCY),
    "grpc.RpcError": _either(by_grpc, FailureCause.DEPENDENCY),
    "smtplib.SMTPException": by_smtp,
    "redis.exceptions.ResponseError": by_redis,
    "subprocess.CalledProcessError": by_exit_status,
    "amqp.exceptions.AMQPError": by_amqp,
    "cimpl.KafkaException": _either(by_kafka, FailureCause.DEPENDENCY),
}
_MRO = type.__dict__["__mro__"]


def class_path(kind: type) -> str:
    """module.qualname of a class; "" for one whose names cannot be read."""
    try:
        return f"{kind.__module__}.{kind.__qualname__}"
    except BaseException:  # a metaclass may raise anything
        return ""


def classes(error: BaseException) -> list[tuple[type, str]]:
    """The classes of an exception with their paths, the nearest first."""
    # Through the base class: a metaclass may have a property of this name, which raises.
    return [(kind, class_path(kind)) for kind in _MRO.__get__(type(error))]


def driver_code(error: BaseException) -> str:
    """The number or SQLSTATE of an error of a database; "" for all others."""
    try:
        return code_of(error) if any(RULES.get(path) is by_database for _, path in classes(error)) else ""
    except BaseException:  # attributes of an exception may be properties that raise anything
        return ""


def by_rules(error: BaseException) -> FailureCause | None:
    """The cause by the nearest class with a rule; None if no rule says one."""
    for _, path in classes(error):
        rule = RULES.get(path)
        if rule is None:
            continue
        try:
            cause = rule if isinstance(rule, FailureCause) else rule(error)
        except BaseException:  # attributes of an exception may be properties that raise anything
            continue
        if cause is not None:
            return cause
    return None


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
    for found in chain(error):
        cause = _named(found, own)
        if cause is None and _is_group(found):
            cause = _of_group(found, own)
        if cause is not None:
            return cause
    return FailureCause.UNKNOWN


def chain(error: BaseException, *, suppressed: bool = False) -> Iterator[BaseException]:
    """`error`, and what it was raised from, each once; with `suppressed` also what `raise ... from None` hides."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen and len(seen) < CHAIN_MAX:
        seen.add(id(found))
        yield found
        before = _CAUSE.__get__(found)
        hidden = _SUPPRESSED.__get__(found) and not suppressed
        found = before if before is not None or hidden else _CONTEXT.__get__(found)


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
        causes = (_named(found, own) for found in chain(error))
        counts.update([next((cause for cause in causes if cause is not None), FailureCause.UNKNOWN)])
    del counts[FailureCause.UNKNOWN]
    if not counts:
        return None
    most = max(counts.values())
    best = [cause for cause, count in counts.items() if count == most]
    return next((cause for cause in _TIES if cause in best), best[0])
