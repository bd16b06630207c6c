"""The outage of the demo: a real service is off. A canary brings dead letters back; behind a breaker there are none."""

from urllib.error import HTTPError, URLError

import pytest

from demo_project.payments.service import PaymentService
from demo_project.payments.tasks import charge
from tests.demo.helpers import manage
from tests.demo.test_orders import proofs


@pytest.fixture
def service():
    """A payment service that knows one card, switched on."""
    found = PaymentService({"4242"})
    found.switch_on()
    yield found
    found.close()


def test_the_service_charges_cards_that_it_knows(service):
    assert charge.func("a-1", "4242", service.url) == 201
    with pytest.raises(HTTPError) as refused:
        charge.func("a-2", "0000", service.url)
    refused.value.close()
    assert refused.value.code == 404
    assert service.charged == ["a-1"]


def test_a_service_that_is_off_refuses_connections_and_has_its_address_again_when_it_is_on(service):
    address = service.url
    for number in range(3):
        service.switch_off()
        with pytest.raises(URLError) as refused:
            charge.func("a-1", "4242", address)
        assert isinstance(refused.value.reason, ConnectionRefusedError)
        service.switch_on()
        assert charge.func(f"b-{number}", "4242", address) == 201
    assert service.url == address
    assert service.charged == ["b-0", "b-1", "b-2"]


def test_the_stage_brings_the_dead_letters_of_an_outage_back_and_has_none_behind_a_breaker(tmp_path):
    done = manage(
        "demo",
        "--stage",
        "outage",
        "--size",
        "full",
        DEMO_DIR=str(tmp_path),
        BROKER_URL="",
        DATABASE_URL="sqlite:///:memory:",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(proofs(done).values()) == ["yes"] * 10, done.stdout
    assert "10 of 10 proofs hold" in done.stdout
    groups = done.stdout.partition("in groups of the same failure:")[2].partition("The service is switched on")[0]
    (first, second) = [line.split() for line in groups.strip().splitlines()[2:]]
    assert first[:3] == ["40", "dependency", "urllib.error.URLError"]
    assert second[:3] == ["3", "data", "urllib.error.HTTPError"]
    assert f"jobs retry --fingerprint {first[3]} --canary 5" in done.stdout
    assert "The circuit breaker of the service is open: all 40 wait." in done.stdout
    assert "No payment was lost or done twice." in " ".join(done.stdout.split())
