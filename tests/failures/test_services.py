"""What clients of outside services really raise has the right cause."""

import amqp
import botocore.exceptions
import confluent_kafka
import pytest

from jobqueue.failures import classify
from tests.failures.raising import check
from tests.failures.real import Real, services, web


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("real", web.STATUSES, ids=str)
def test_the_status_of_an_answer_decides(real, world):
    check(real, world)


@pytest.mark.parametrize("real", web.TROUBLE, ids=str)
def test_a_server_that_hangs_or_hangs_up_is_a_dependency(real, world):
    check(real, world)


@pytest.mark.parametrize("real", web.UNTRUSTED, ids=str)
def test_a_certificate_that_is_not_trusted_is_a_dependency(real, world):
    check(real, world)


@pytest.mark.parametrize("real", [*web.REFUSED, *services.CLOSED], ids=str)
def test_every_client_whose_port_refuses_reports_a_dependency(real, world):
    check(real, world)


@pytest.mark.parametrize("real", web.UNRESOLVED, ids=str)
def test_a_name_that_cannot_be_resolved_is_a_dependency(real, world):
    check(real, world)


@pytest.mark.parametrize("real", web.CIRCLES, ids=str)
def test_a_circle_of_redirects_is_a_dependency(real, world):
    check(real, world)


@pytest.mark.parametrize("real", web.WRONG_URLS, ids=str)
def test_a_wrong_url_is_data(real, world):
    check(real, world)


@pytest.mark.parametrize("real", web.BODIES, ids=str)
def test_an_answer_that_is_no_json_is_a_dependency_and_a_text_that_is_none_is_data(real, world):
    check(real, world)


@pytest.mark.parametrize("real", [*web.POOLS, *services.POOLS], ids=str)
def test_all_connections_of_a_pool_in_use_are_a_resource(real, world):
    check(real, world)


@pytest.mark.parametrize("real", web.WRAPPED, ids=str)
def test_a_group_and_an_exception_of_the_project_have_the_cause_of_what_is_inside(real, world):
    check(real, world)


@pytest.mark.parametrize("real", services.MAIL, ids=str)
def test_the_code_of_an_smtp_server_decides(real, world):
    check(real, world)


@pytest.mark.parametrize("real", services.REDIS, ids=str)
def test_the_code_of_a_redis_server_decides(real, world):
    check(real, world)


@pytest.mark.parametrize(
    "answer", [b"-MISCONF cannot persist to disk\r\n", b"-NOREPLICAS too few\r\n", b"-BUSY a script\r\n"]
)
def test_a_redis_server_in_trouble_is_a_dependency(answer, world):
    check(Real("redis", services.redis_answers(answer), "dependency"), world)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (amqp.NotFound("no queue 'x'"), "data"),
        (amqp.PreconditionFailed("inequivalent arg"), "data"),
        (amqp.AccessRefused("login was refused"), "dependency"),
        (amqp.ConnectionForced("broker is stopping"), "dependency"),
        (amqp.ResourceLocked("exclusive queue"), "resource"),
        (amqp.ResourceError("out of memory"), "resource"),
    ],
)
def test_the_code_of_an_amqp_broker_decides(error, cause):
    assert classify(error) == cause


@pytest.mark.parametrize("real", services.SERIALIZED, ids=str)
def test_what_cannot_be_serialized_is_data(real, world):
    check(real, world)


def test_kafka_errors_follow_their_code():
    away = confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT))
    large = confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE))
    assert (classify(away), classify(large)) == ("dependency", "data")


@pytest.mark.parametrize("real", services.AWS, ids=str)
def test_the_status_of_an_aws_service_decides(real, world):
    check(real, world)


@pytest.mark.parametrize(
    ("code", "cause"), [("ThrottlingException", "dependency"), ("ExpiredToken", "dependency"), ("Invalid", "data")]
)
def test_some_codes_of_aws_say_more_than_their_status_400(code, cause):
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    assert classify(botocore.exceptions.ClientError(answer, "PutItem")) == cause


@pytest.mark.parametrize(
    ("name", "cause"),
    [("UNAVAILABLE", "dependency"), ("NOT_FOUND", "data"), ("INVALID_ARGUMENT", "data"), ("INTERNAL", "dependency")],
)
def test_the_code_of_a_grpc_call_decides(name, cause):
    # grpcio is large, so this is a class of the same path and shape.
    kind = type("RpcError", (Exception,), {"__module__": "grpc", "code": lambda self: type("Code", (), {"name": name})})
    inactive = type("_InactiveRpcError", (kind,), {"__module__": "grpc._channel"})
    assert classify(inactive()) == cause


@pytest.mark.parametrize("real", services.PROGRAMS, ids=str)
def test_a_program_that_takes_too_long_is_a_dependency(real, world):
    check(real, world)
