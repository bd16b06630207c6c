"""The cause of an error that an outside service answered: by HTTP status, SMTP code, AMQP code and their like."""

from __future__ import annotations

from jobqueue.failures.vocabulary import FailureCause

DATA, DEPENDENCY, RESOURCE = FailureCause.DATA, FailureCause.DEPENDENCY, FailureCause.RESOURCE

#: 4xx that say something about the service or our access to it, and nothing about the request
_NOT_THE_REQUEST = {401, 403, 408, 425, 429}
#: botocore's codes that come with status 400
_AWS_BUSY = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "SlowDown", "ProvisionedThroughputExceeded")
_AWS_ACCESS = ("ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId", "AccessDenied", "RequestTimeout")
_GRPC_DATA = {
    "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "DATA_LOSS",
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
    for place in (response, error):
        for name in ("status_code", "status", "http_status", "code"):
            if (cause := by_status(getattr(place, name, None))) is not None:
                return cause
    return None


def by_aws(error: BaseException) -> FailureCause | None:
    """The cause of a botocore ClientError."""
    answer = getattr(error, "response", {})
    code = str(answer.get("Error", {}).get("Code", ""))
    if code.startswith((*_AWS_BUSY, *_AWS_ACCESS)):
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
    # 530 and 535: it refuses us. 552 to 554, 550, 551, 501: it refuses the message or an address.
    for_good = codes and all(isinstance(code, int) and code in (501, 550, 551, 552, 553, 554) for code in codes)
    return DATA if for_good else DEPENDENCY


def by_amqp(error: BaseException) -> FailureCause | None:
    """The cause of an exception of py-amqp, by the code of its reply."""
    return _AMQP.get(getattr(error, "code", None) or 0, DEPENDENCY)


def by_redis(error: BaseException) -> FailureCause | None:
    """The cause of a redis ResponseError: DATA, unless its first word is about the server and not the command."""
    return DEPENDENCY if str(error).startswith(_REDIS_SERVER) else DATA


def by_kafka(error: BaseException) -> FailureCause | None:
    """The cause of a confluent_kafka.KafkaException."""
    return DATA if error.args[0].code() in _KAFKA_DATA else DEPENDENCY
