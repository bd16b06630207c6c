"""The causes of libraries that are not installed here, by the paths under which their classes are known.

The paths are those that the classes have (type.__module__ and __qualname__), which need not be those of their files.
"""

from __future__ import annotations

import smtplib
import xmlrpc.client
from types import SimpleNamespace

import botocore.exceptions
import pytest
import requests
from boto3.exceptions import S3UploadFailedError
from django.db import DatabaseError

from jobqueue.failures import classify
from tests.failures.raising import raised
from tests.marks import finding


def error(*paths, **attributes):
    """An exception whose classes have these paths, the nearest first."""
    kind = Exception
    for path in reversed(paths):
        module, _, name = path.rpartition(".")
        kind = type(name, (kind,), {"__module__": module})
    found = kind("it failed")
    vars(found).update(attributes)
    return found


def elastic(name, status):
    return error(
        f"elasticsearch.{name}",
        "elasticsearch.ApiError",
        "elastic_transport.ApiError",
        meta=SimpleNamespace(status=status),
    )


def transport(name):
    return error(f"elastic_transport.{name}", "elastic_transport.TransportError")


def twilio(status):
    path = "twilio.base.exceptions.Twilio"
    return error(f"{path}RestException", f"{path}Exception", status=status, code=21211)


def stripe(name, status=None):
    return error(f"stripe._error.{name}", "stripe._error.StripeError", http_status=status, code="card_declined")


def mongo(name, code=None, details=None):
    return error(
        f"pymongo.errors.{name}",
        "pymongo.errors.OperationFailure",
        "pymongo.errors.PyMongoError",
        code=code,
        details=details,
    )


def bulk_write(*codes):
    return mongo("BulkWriteError", 65, {"writeErrors": [{"code": code} for code in codes], "writeConcernErrors": []})


def aws(code, status=400):
    answer = {"Error": {"Code": code, "Message": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "PutItem")


def upload(code, status):
    def call():
        try:
            raise aws(code, status)
        except botocore.exceptions.ClientError as inner:
            raise S3UploadFailedError(f"Failed to upload: {inner}")  # noqa: B904 - as boto3 does

    return raised(call)


def slack(reason, status=200):
    class Response(dict):
        status_code = status

    return error("slack_sdk.errors.SlackApiError", "slack_sdk.errors.SlackClientError", response=Response(error=reason))


def soap(code):
    return error("zeep.exceptions.Fault", "zeep.exceptions.Error", code=code)


DATA = {
    "elasticsearch 404": elastic("NotFoundError", 404),
    "elasticsearch 400": elastic("BadRequestError", 400),
    "elastic, a value that is no JSON": transport("SerializationError"),
    "twilio, a wrong number": twilio(400),
    "stripe, an event of somebody else": stripe("SignatureVerificationError"),
    "stripe, a declined card": stripe("CardError", 402),
    "stripe, a request without a status": stripe("InvalidRequestError"),
    "stripe, a card without a status": stripe("CardError"),
    "mongo, keys that are there": bulk_write(11000, 11000),
    "mongo, a document that is not valid": mongo("OperationFailure", 121),
    "mongo, a wrong call": error("pymongo.errors.InvalidOperation", "pymongo.errors.PyMongoError"),
    "bson": error("bson.errors.InvalidDocument", "bson.errors.BSONError"),
    "requests, nan": raised(lambda: requests.post("http://localhost", json={"a": float("nan")})),
    "requests, a body that was read": requests.exceptions.StreamConsumedError(),
    "botocore, no such service": botocore.exceptions.UnknownServiceError(service_name="x", known_service_names=["s3"]),
    "botocore, no region": botocore.exceptions.InvalidRegionError(region_name="x y"),
    "boto3, no such bucket": upload("NoSuchBucket", 404),
    "smtp, a domain without mail": smtplib.SMTPRecipientsRefused({"a@b": (556, b"no mail")}),
    "smtp, taken for spam": smtplib.SMTPDataError(571, b"refused"),
    "smtp, too large": smtplib.SMTPSenderRefused(523, b"too large", "a@b"),
    "smtp, not ASCII": smtplib.SMTPNotSupportedError("SMTPUTF8 not supported by server"),
    "slack, no such channel": slack("channel_not_found"),
    "azure 404": error("azure.core.exceptions.HttpResponseError", "azure.core.exceptions.AzureError", status_code=404),
    "vault, no such path": error("hvac.exceptions.InvalidPath", "hvac.exceptions.VaultError"),
    "dns, no such name": error("dns.resolver.NXDOMAIN", "dns.exception.DNSException"),
    "zeep, the sender": soap("soap:Client"),
    "zeep, a value that does not fit": error("zeep.exceptions.ValidationError", "zeep.exceptions.Error"),
    "xmlrpc, a refusal": xmlrpc.client.Fault(1, "no such method"),
    "sqlalchemy, no row": error("sqlalchemy.exc.NoResultFound", "sqlalchemy.exc.InvalidRequestError"),
}
DEPENDENCY = {
    "elasticsearch 429": elastic("ApiError", 429),
    "elasticsearch is down": transport("ConnectionError"),
    "twilio is down": twilio(503),
    "stripe is down": stripe("APIConnectionError"),
    "stripe, too many": stripe("RateLimitError", 429),
    "mongo, a primary that is none": mongo("OperationFailure", 10107),
    "mongo, one key and one shard": bulk_write(11000, 91),
    "requests, an answer that is no JSON": requests.exceptions.JSONDecodeError("x", "", 0),
    "boto3, access denied": upload("AccessDenied", 403),
    "smtp, a login that is refused": smtplib.SMTPAuthenticationError(535, b"no"),
    "smtp, no encryption": smtplib.SMTPNotSupportedError("STARTTLS extension not supported by server."),
    "slack, too many": slack("ratelimited", 429),
    "slack, no token": slack("invalid_auth"),
    "azure is down": error("azure.core.exceptions.ServiceRequestError", "azure.core.exceptions.AzureError"),
    "azure 503": error("azure.core.exceptions.HttpResponseError", "azure.core.exceptions.AzureError", status_code=503),
    "vault is sealed": error("hvac.exceptions.VaultDown", "hvac.exceptions.VaultError"),
    "dns does not answer": error("dns.resolver.NoNameservers", "dns.exception.DNSException"),
    "zeep, the receiver": soap("soap:Server"),
    "zeep 503": error("zeep.exceptions.TransportError", "zeep.exceptions.Error", status_code=503),
    "xmlrpc 503": xmlrpc.client.ProtocolError("http://x", 503, "away", {}),
    "paramiko, no port answers": error("paramiko.ssh_exception.NoValidConnectionsError"),
    "google gave up": error("google.api_core.exceptions.RetryError", "google.api_core.exceptions.GoogleAPIError"),
    "HTTP 423": error("httpx.HTTPStatusError", response=SimpleNamespace(status_code=423)),
}
BUSY_AWS = [
    "Throttling", "RequestThrottled", "RequestThrottledException", "EC2ThrottledException", "KMSThrottlingException",
    "TransactionInProgressException", "TransactionConflictException", "LimitExceededException",
    "PriorRequestNotComplete", "BandwidthLimitExceeded", "InternalFailure", "InternalServerError",
    "ServiceUnavailableException",
]  # fmt: skip
MYSQL = {
    3168: "dependency",
    3169: "dependency",
    1036: "dependency",
    3100: "dependency",
    1194: "dependency",
} | dict.fromkeys((1637, 1015), "resource")


#: had the right cause before they were written down here
KNOWN = {
    "stripe, a declined card", "twilio is down", "stripe is down", "stripe, too many", "mongo, a primary that is none",
    "mongo, one key and one shard", "requests, an answer that is no JSON", "boto3, access denied",
    "smtp, a login that is refused", "smtp, no encryption", "Throttling",
}  # fmt: skip


def cases(names):
    return [pytest.param(name, marks=[] if name in KNOWN else [finding("F15")]) for name in names]


@pytest.mark.parametrize("name", cases(DATA))
def test_what_one_request_has_wrong_is_data(name):
    assert classify(DATA[name]) == "data"


@pytest.mark.parametrize("name", cases(DEPENDENCY))
def test_what_is_wrong_with_the_service_or_our_access_is_a_dependency(name):
    assert classify(DEPENDENCY[name]) == "dependency"


@pytest.mark.parametrize("code", cases(BUSY_AWS))
def test_a_busy_service_of_aws_is_a_dependency_though_its_status_is_400(code):
    assert classify(aws(code)) == "dependency"


def test_other_codes_of_aws_with_that_status_are_data():
    assert classify(aws("ConditionalCheckFailedException")) == "data"


@pytest.mark.parametrize("number", cases(MYSQL))
def test_a_mysql_server_that_is_away_or_full_is_no_wrong_statement(number):
    assert classify(DatabaseError(number, "x")) == MYSQL[number]
