"""classify(): the cause class of whatever a job has raised.

A rule is a class path and a cause, or a function that looks at the exception. A subclass follows its nearest base.
Paths are module and qualified name of the class itself (type.__module__, type.__qualname__), not of an alias. Classes
that say nothing (Exception, RuntimeError, BaseException) have no rule, so that what they were raised from decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jobqueue.failures.codes import (
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

_BY_CAUSE = {
    FailureCause.LOST: "jobqueue.exceptions.JobLost",
    FailureCause.EXPIRED: "jobqueue.exceptions.JobExpired",
    # Only our own limits: what waits for something outside raises other classes.
    FailureCause.TIMEOUT: "jobqueue.exceptions.SoftTimeout jobqueue.exceptions.HardTimeout",
    FailureCause.FORMAT: "jobqueue.exceptions.PayloadError jobqueue.exceptions.MissingKey",
    FailureCause.DATA: """
        builtins.ValueError builtins.LookupError builtins.TypeError builtins.ArithmeticError builtins.AssertionError
        builtins.AttributeError builtins.EOFError builtins.BufferError builtins.StopIteration
        builtins.StopAsyncIteration
        django.core.exceptions.ObjectDoesNotExist django.core.exceptions.MultipleObjectsReturned
        django.core.exceptions.ValidationError django.core.exceptions.SuspiciousOperation
        django.core.exceptions.PermissionDenied django.core.exceptions.FieldError django.http.response.Http404
        django.core.exceptions.BadRequest django.core.exceptions.ViewDoesNotExist
        django.template.exceptions.TemplateDoesNotExist django.template.exceptions.TemplateSyntaxError
        django.core.signing.BadSignature
        django.db.models.deletion.ProtectedError django.db.models.deletion.RestrictedError
        json.decoder.JSONDecodeError _csv.Error struct.error zlib.error xml.parsers.expat.ExpatError
        zipfile.BadZipFile gzip.BadGzipFile tarfile.TarError binascii.Error lzma.LZMAError _lzma.LZMAError
        configparser.Error
        xml.etree.ElementTree.ParseError xml.sax._exceptions.SAXException pyexpat.ExpatError
        pickle.PickleError _pickle.PickleError shutil.SameFileError email.errors.MessageError
        jsonschema.exceptions.ValidationError jsonschema.exceptions.SchemaError marshmallow.exceptions.ValidationError
        pydantic_core._pydantic_core.ValidationError yaml.error.YAMLError cerberus.validator.DocumentError
        lxml.etree.Error PIL.UnidentifiedImageError openpyxl.utils.exceptions.InvalidFileException
        phonenumbers.phonenumberutil.NumberParseException jwt.exceptions.PyJWTError
        requests.exceptions.InvalidURL requests.exceptions.MissingSchema requests.exceptions.InvalidSchema
        requests.exceptions.InvalidHeader requests.exceptions.InvalidJSONError requests.exceptions.StreamConsumedError
        httpx.InvalidURL httpx.UnsupportedProtocol httpx.LocalProtocolError httpx.CookieConflict httpx.StreamError
        aiohttp.client_exceptions.InvalidURL urllib3.exceptions.LocationParseError
        urllib3.exceptions.URLSchemeUnknown http.client.InvalidURL http.client.UnknownTransferEncoding
        redis.exceptions.DataError redis.exceptions.InvalidPipelineStack
        kombu.exceptions.SerializationError kombu.exceptions.ContentDisallowed kombu.exceptions.SerializerNotInstalled
        kombu.exceptions.DecodeError kombu.exceptions.EncodeError
        ftplib.error_perm pymongo.errors.DuplicateKeyError
        botocore.exceptions.ParamValidationError botocore.exceptions.ValidationError
        botocore.exceptions.UnknownServiceError botocore.exceptions.InvalidRegionError
        botocore.exceptions.UnknownParameterError botocore.exceptions.RangeError
        pymongo.errors.WriteError pymongo.errors.InvalidOperation pymongo.errors.InvalidName pymongo.errors.InvalidURI
        pymongo.errors.CollectionInvalid pymongo.errors.DocumentTooLarge bson.errors.BSONError
        elastic_transport.SerializationError elastic_transport._exceptions.SerializationError
        stripe._error.SignatureVerificationError stripe.error.SignatureVerificationError
        slack_sdk.errors.SlackRequestError slack_sdk.errors.SlackObjectFormationError
        hvac.exceptions.InvalidRequest hvac.exceptions.InvalidPath hvac.exceptions.ParamValidationError
        dns.exception.SyntaxError dns.resolver.NXDOMAIN dns.resolver.NoAnswer
        zeep.exceptions.Error xmlrpc.client.Fault
        sqlalchemy.exc.NoResultFound sqlalchemy.exc.MultipleResultsFound
    """,
    FailureCause.DEPENDENCY: """
        builtins.ConnectionError builtins.TimeoutError subprocess.TimeoutExpired
        socket.gaierror socket.herror ssl.SSLError
        urllib.error.ContentTooShortError http.client.HTTPException
        requests.exceptions.RequestException requests.exceptions.JSONDecodeError
        urllib3.exceptions.HTTPError httpx.HTTPError httpcore.NetworkError
        httpcore.TimeoutException httpcore.ProtocolError aiohttp.client_exceptions.ClientError
        asyncio.exceptions.IncompleteReadError websockets.exceptions.WebSocketException
        anyio.BrokenResourceError h11._util.RemoteProtocolError
        botocore.exceptions.BotoCoreError botocore.exceptions.HTTPClientError boto3.exceptions.Boto3Error
        google.auth.exceptions.GoogleAuthError
        redis.exceptions.RedisError redis.exceptions.ReadOnlyError redis.exceptions.ClusterDownError
        redis.exceptions.BusyLoadingError redis.exceptions.NoPermissionError
        redis.exceptions.AuthenticationWrongNumberOfArgsError redis.exceptions.TryAgainError
        redis.exceptions.MasterDownError redis.exceptions.MovedError redis.exceptions.AskError
        kombu.exceptions.OperationalError kombu.exceptions.KombuError pika.exceptions.AMQPError
        kafka.errors.KafkaError aiokafka.errors.KafkaError nats.errors.Error
        pymongo.errors.PyMongoError pymemcache.exceptions.MemcacheError
        elastic_transport.TransportError elastic_transport._exceptions.TransportError
        opensearchpy.exceptions.ImproperlyConfigured slack_sdk.errors.SlackClientError azure.core.exceptions.AzureError
        hvac.exceptions.VaultError dns.exception.DNSException google.api_core.exceptions.GoogleAPIError
        xmlrpc.client.ResponseError
        imaplib.IMAP4.error poplib.error_proto ftplib.Error nntplib.NNTPError
        paramiko.ssh_exception.SSHException paramiko.ssh_exception.NoValidConnectionsError
        ldap.LDAPError twilio.base.exceptions.TwilioException
        openai.APIConnectionError stripe._error.APIConnectionError stripe.error.APIConnectionError
        jobqueue.exceptions.DestinationDown jobqueue.exceptions.OutcomeUnknown
    """,
    FailureCause.RESOURCE: """
        builtins.MemoryError builtins.RecursionError locale.Error _queue.Empty queue.Empty queue.Full
        concurrent.futures._base.BrokenExecutor multiprocessing.ProcessError
        psycopg_pool.errors.PoolTimeout psycopg_pool.errors.TooManyRequests psycopg_pool.PoolTimeout
        psycopg_pool.TooManyRequests psycopg2.pool.PoolError
        sqlalchemy.exc.TimeoutError
        httpx.PoolTimeout httpcore.PoolTimeout urllib3.exceptions.EmptyPoolError
        urllib3.exceptions.FullPoolError
        redis.exceptions.MaxConnectionsError redis.exceptions.OutOfMemoryError redis.exceptions.WatchError
        redis.exceptions.LockError
        kombu.exceptions.LimitExceeded kombu.exceptions.ConnectionLimitExceeded kombu.exceptions.ChannelLimitExceeded
        jobqueue.exceptions.DatabaseBusy jobqueue.exceptions.LockNotAcquired jobqueue.exceptions.LockLost
        jobqueue.exceptions.StaleSnapshot jobqueue.exceptions.StaleFence jobqueue.exceptions.InProgress
        jobqueue.exceptions.DedupeConflict jobqueue.exceptions.QueueFull
    """,
}
_DRIVERS = """
    django.db.utils.Error sqlite3.Error MySQLdb.Error MySQLdb._exceptions.MySQLError pymysql.err.MySQLError
    mysql.connector.errors.Error mariadb.Error psycopg.Error psycopg2.Error asyncpg.exceptions._base.PostgresError
    sqlalchemy.exc.DBAPIError oracledb.exceptions.Error
"""
_BY_PATH: dict[str, Rule] = {path: cause for cause, paths in _BY_CAUSE.items() for path in paths.split()}


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
    **_BY_PATH,
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
