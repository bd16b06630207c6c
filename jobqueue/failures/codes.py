"""The cause classes, the exceptions of each, and the class of an error that carries a number or a status.

Of databases by the number of the server or the class of PEP 249, of HTTP and other services by the status or code of
the answer, of the operating system by the errno.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class FailureCause(StrEnum):
    """Why an attempt failed; stored as text in Job.cause and JobAttempt.cause."""

    label: StrOrPromise  # in the admin
    given: bool  # whether a project may give it; the others say what happened to the run, not what was raised in it

    def __new__(cls, value: str, label: StrOrPromise, given: bool = False) -> FailureCause:
        member = str.__new__(cls, value)
        member._value_, member.label, member.given = value, label, given
        return member

    FORMAT = "format", _("format"), True
    DEPENDENCY = "dependency", _("dependency"), True
    DATA = "data", _("data"), True
    RESOURCE = "resource", _("resource"), True
    LOST = "lost", _("lease lost")
    TIMEOUT = "timeout", _("timeout")
    EXPIRED = "expired", _("expired")
    UNKNOWN = "unknown", _("unknown"), True


#: the paths of the exception classes of each cause, besides those that causes.RULES looks at
CLASSES = {
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


#: the cause of an exception by what it carries, as a status or an errno; None: the next class of its MRO decides
Decide: TypeAlias = Callable[[BaseException], FailureCause | None]
Rule: TypeAlias = FailureCause | Decide


_RESOURCE_ERRNO = (
    # disk, files, memory, processes of this host
    "ENOSPC EDQUOT EFBIG EROFS EIO ESTALE EMFILE ENFILE ENOMEM ENOBUFS EAGAIN EBUSY ETXTBSY ENOLCK EDEADLK EINTR "
    # what this host does not allow the worker: another host may
    "EACCES EPERM "
    # no port is free here
    "EADDRINUSE EADDRNOTAVAIL"
)
_DEPENDENCY_ERRNO = (
    "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ESHUTDOWN ENOTCONN ETIMEDOUT EHOSTUNREACH EHOSTDOWN "
    "ENETUNREACH ENETDOWN ENETRESET ENONET EREMOTEIO ECOMM EPROTO ENOLINK"
)
# The path or the value is wrong, on any host.
_DATA_ERRNO = "ENOENT EEXIST EISDIR ENOTDIR ENOTEMPTY ENAMETOOLONG ELOOP EXDEV EINVAL EILSEQ EBADF ESPIPE E2BIG ENOEXEC"

_BY_ERRNO = {
    number: cause
    for names, cause in (
        (_DATA_ERRNO, FailureCause.DATA),
        (_DEPENDENCY_ERRNO, FailureCause.DEPENDENCY),
        (_RESOURCE_ERRNO, FailureCause.RESOURCE),
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


DATA, DEPENDENCY, RESOURCE = FailureCause.DATA, FailureCause.DEPENDENCY, FailureCause.RESOURCE

#: 4xx that say something about the service or our access to it, and nothing about the request
_NOT_THE_REQUEST = {401, 403, 408, 423, 425, 429}
#: botocore's codes that come with status 400, the first of them anywhere in a code
_AWS_THROTTLED = "Throttl"
_AWS_BUSY = (
    "TooManyRequests", "RequestLimitExceeded", "SlowDown", "ProvisionedThroughputExceeded", "LimitExceeded",
    "BandwidthLimitExceeded", "TransactionInProgress", "TransactionConflict", "PriorRequestNotComplete",
    "InternalFailure", "InternalServerError", "InternalServiceError", "InternalError", "ServiceUnavailable",
)  # fmt: skip
_AWS_ACCESS = ("ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId", "AccessDenied", "RequestTimeout")
_GRPC_DATA = {
    "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "DATA_LOSS",
}  # fmt: skip
#: it refuses the message or an address; 530 and 535: it refuses us
_SMTP_DATA = {501, 523, 541, 550, 551, 552, 553, 554, 555, 556, 571}
#: a value, a key that is there already, a document that is not valid or too large, a name that is or is not there
_MONGO_DATA = {
    2, 9, 14, 20, 26, 28, 40, 48, 52, 54, 55, 56, 57, 59, 66, 72, 85, 86, 121, 10334, 11000, 11001, 12582, 17419,
}  # fmt: skip
#: it refuses us, or is busy or broken
_SLACK_SERVICE = {
    "accesslimited", "account_inactive", "fatal_error", "internal_error", "invalid_auth", "missing_scope", "not_authed",
    "org_login_required", "ratelimited", "rate_limited", "request_timeout", "service_unavailable", "team_added_to_org",
    "token_expired", "token_revoked",
}  # fmt: skip
#: NOT_FOUND, PRECONDITION_FAILED, CONTENT_TOO_LARGE and what a client sent wrongly; RESOURCE_LOCKED, RESOURCE_ERROR
_AMQP = {404: DATA, 406: DATA, 311: DATA, 402: DATA, 501: DATA, 502: DATA, 503: DATA, 405: RESOURCE, 506: RESOURCE}
#: it cannot write to its disk, has too few replicas, runs a script for too long, or refuses us; others have classes
_REDIS_SERVER = ("MISCONF ", "NOREPLICAS ", "BUSY ", "UNKILLABLE ", "NOGOODSLAVE ", "INPROG ")
#: the message is invalid or too large; its topic or partition is unknown
_KAFKA_DATA = {1, 2, 3, 10, 18, 87, -190, -188, -187}


def by_status(status: object) -> FailureCause | None:
    """The cause that an HTTP status says; None for what is no status of an error."""
    if not isinstance(status, int) or not 400 <= status < 600:
        return None
    return DEPENDENCY if status >= 500 or status in _NOT_THE_REQUEST else DATA


def by_http(error: BaseException) -> FailureCause | None:
    """The cause of an exception that carries a status, or a response with one."""
    response = getattr(error, "response", None)
    for place in (response, error, getattr(error, "meta", None)):
        for name in ("status_code", "status", "http_status", "code", "errcode"):
            if (cause := by_status(getattr(place, name, None))) is not None:
                return cause
    return None


def by_aws(error: BaseException) -> FailureCause | None:
    """The cause of a botocore ClientError."""
    answer = getattr(error, "response", {})
    code = str(answer.get("Error", {}).get("Code", ""))
    if _AWS_THROTTLED in code or code.startswith((*_AWS_BUSY, *_AWS_ACCESS)):
        return DEPENDENCY
    # S3 answers a HEAD without a body, so that the status is all there is.
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") or (int(code) if code.isdigit() else None)
    return by_status(status)


def by_grpc(error: BaseException) -> FailureCause | None:
    """The cause of a grpc.RpcError."""
    name = error.code().name  # type: ignore[attr-defined]
    if name == "RESOURCE_EXHAUSTED" or name not in _GRPC_DATA:
        return DEPENDENCY
    return DATA


def by_smtp(error: BaseException) -> FailureCause | None:
    """The cause of an smtplib exception: DATA if the server refuses this message or its recipients for good."""
    refused = getattr(error, "recipients", None)
    codes = [code for code, _ in refused.values()] if isinstance(refused, dict) else [getattr(error, "smtp_code", 0)]
    if type(error).__name__ == "SMTPNotSupportedError":
        # An address that is not ASCII; the other ones are about its login and its encryption.
        return DATA if "SMTPUTF8" in str(error) else DEPENDENCY
    return DATA if codes and all(code in _SMTP_DATA for code in codes) else DEPENDENCY


def by_mongo(error: BaseException) -> FailureCause | None:
    """The cause of an OperationFailure of pymongo: by its code, or by those of all writes of a bulk."""
    details = getattr(error, "details", None)
    writes = details.get("writeErrors") if isinstance(details, dict) else None
    codes = [write.get("code") for write in writes] if writes else [getattr(error, "code", None)]
    return DATA if all(code in _MONGO_DATA for code in codes) else DEPENDENCY


def by_slack(error: BaseException) -> FailureCause | None:
    """The cause of a SlackApiError: most refusals have status 200 and a word for the reason."""
    response = getattr(error, "response", None)
    reason = str(response.get("error", "")) if response is not None else ""
    return DEPENDENCY if reason in _SLACK_SERVICE else by_http(error) or DATA


def by_soap(error: BaseException) -> FailureCause | None:
    """The cause of a Fault of zeep: the code says whether the sender or the receiver is to blame."""
    code = str(getattr(error, "code", "") or "").rpartition(":")[2]
    return DEPENDENCY if code.startswith(("Server", "Receiver")) else DATA


def by_amqp(error: BaseException) -> FailureCause | None:
    """The cause of an exception of py-amqp, by the code of its reply."""
    return _AMQP.get(getattr(error, "code", None) or 0, DEPENDENCY)


def by_redis(error: BaseException) -> FailureCause | None:
    """The cause of a redis ResponseError: DATA, unless its first word is about the server and not the command."""
    return DEPENDENCY if str(error).startswith(_REDIS_SERVER) else DATA


def by_kafka(error: BaseException) -> FailureCause | None:
    """The cause of a confluent_kafka.KafkaException."""
    return DATA if error.args[0].code() in _KAFKA_DATA else DEPENDENCY


#: what the codes of each database say, and words of errors that have none; jobqueue.db adds them
BY_CODE: list[Decide] = []
REFUSALS: list[str] = []
_BY_CLASS = {
    **dict.fromkeys(("IntegrityError", "DataError", "ProgrammingError", "NotSupportedError"), DATA),
    **dict.fromkeys(("OperationalError", "InterfaceError", "InternalError", "DatabaseError", "Error"), DEPENDENCY),
}


def by_database(error: BaseException) -> FailureCause | None:
    """The cause of an error of a driver, or of Django's or SQLAlchemy's error that wraps one."""
    for found in _wrapped(error):
        for decide in BY_CODE:
            if (cause := decide(found)) is not None:
                return cause
    if any(words in str(error) for words in REFUSALS):
        return RESOURCE
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_CLASS:
            return _BY_CLASS[kind.__name__]
    return DEPENDENCY


def code_of(error: BaseException) -> str:
    """The number or SQLSTATE that a driver has given such an error; "" if there is none."""
    for found in _wrapped(error):
        numbers = (getattr(found, "errno", None), *found.args[:1], getattr(found, "sqlite_errorcode", None))
        states = (getattr(found, "sqlstate", None), getattr(found, "pgcode", None))
        codes = [str(number) for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
        codes += [state for state in states if isinstance(state, str) and state]
        if codes:
            return codes[0]
    return ""


def _wrapped(error: BaseException) -> list[BaseException]:
    """An error of a driver, or one that wraps it, and what it wraps."""
    others = (error.__cause__, getattr(error, "orig", None))
    return [error, *(other for other in others if isinstance(other, BaseException))]
