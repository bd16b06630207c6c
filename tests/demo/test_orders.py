"""The orders of the demo: every committed one arrives and is booked once, though the relay is killed between."""

import pytest

from demo_project.orders.mailbox import END_OF_MAIL, MailFolder
from tests.demo.helpers import manage, migrate
from tests.marks import committed
from tests.settings import VENDOR

ORDERS = "120"


def proofs(done):
    """The lines of the last table: claim -> whether it holds."""
    lines = done.stdout.partition("What was proved")[2].splitlines()
    return {line[:40].rstrip(): line.rsplit(maxsplit=1)[1] for line in lines if line.endswith(("yes", "NO"))}


@pytest.fixture
def shop(transactional_db):
    """The tables of the demo's shop, until the test ends: the pages' examples make one of the same name."""
    migrate("orders")
    yield
    migrate("orders", "zero")


@committed
@pytest.mark.skipif(VENDOR not in ("sqlite", "mysql"), reason="the demo's default and the main database are enough")
def test_the_orders_of_the_demo_arrive_as_emails_and_are_booked_once_though_a_relay_is_killed(shop):
    done = manage("demo", "--in-place", "--stage", "orders", "--orders", ORDERS, BROKER_URL="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "e-mails" in done.stdout
    assert list(proofs(done).values()) == ["yes"] * 8, done.stdout


@committed
@pytest.mark.skipif(VENDOR != "sqlite", reason="brokers do not know the database: once is enough")
# RabbitMQ may have to be installed first.
def test_with_a_broker_url_they_arrive_through_rabbitmq(shop, rabbitmq):
    pytest.importorskip("kombu")
    done = manage("demo", "--in-place", "--stage", "orders", "--orders", ORDERS, BROKER_URL=rabbitmq.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "messages to RabbitMQ" in done.stdout
    assert list(proofs(done).values()) == ["yes"] * 8, done.stdout


def test_an_email_that_a_killed_relay_has_left_half_written_is_not_read(tmp_path):
    folder = tmp_path / "relay-1"
    folder.mkdir()
    whole = b'Subject: x\nMessage-ID: <7@outbox.example.com>\n\n{"reference": "a"}\n' + END_OF_MAIL
    (folder / "1.log").write_bytes(whole + b"Subject: y\nMessage-ID: <8@outb")
    mailbox = MailFolder(tmp_path)
    assert [tuple(message) for message in mailbox.receive()] == [(7, {"reference": "a"})]
    assert list(mailbox.receive()) == []
    with (folder / "1.log").open("ab") as file:
        file.write(b"ox.example.com>\n\n{}\n" + END_OF_MAIL)
    assert [message.event_id for message in mailbox.receive()] == [8]
