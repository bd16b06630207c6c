"""The serial numbers of the demo: sales under a Redis lock, and a short race. The long one: tests/proofs/demo."""

from tests.demo.helpers import manage
from tests.marks import committed

pytestmark = committed


def test_a_number_is_sold_once_though_a_lock_has_expired(redis_url):
    done = manage("test", "demo_project.serials", "-v0", redis_url=redis_url)
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
    assert "skipped" not in done.stderr
