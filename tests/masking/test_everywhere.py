"""No secret is on any page of the admin or in what a command prints, wherever it was put."""

import pytest

from jobqueue.management.commands.jobs import SUBCOMMANDS
from jobqueue.masking import MASK
from tests.admin.helpers import root
from tests.marks import finding
from tests.masking import everywhere
from tests.masking.secrets import SECRETS

pytestmark = pytest.mark.django_db(transaction=True)
#: sub-commands that say only what they have changed or measured
WITHOUT_TEXTS = {"cancel", "discard", "release", "enqueue", "prune", "bench", "completion"}


@finding("O-M10")
def test_no_secret_is_on_a_page_or_in_what_a_command_prints():
    jobs = everywhere.fill()
    assert len(SECRETS) >= 50
    shown = [*everywhere.pages(root(), jobs), *everywhere.commands(jobs)]
    read = {words.split()[1] for words, _ in shown if words.startswith("jobs ")}
    assert read | WITHOUT_TEXTS == set(SUBCOMMANDS)
    found = {name: leaks for name, text in shown if (leaks := everywhere.leaks(text))}
    assert not found, "\n".join(f"{name}: {len(leaks)}: {leaks[:3]}" for name, leaks in found.items())
    assert sum(MASK in text for _name, text in shown) > len(shown) // 2


def test_the_secrets_of_short_columns_are_fifty_too():
    lines = " ".join(everywhere.in_one_line(everywhere.SHORT))
    assert sum(text in lines for text, _ in SECRETS) >= 50
