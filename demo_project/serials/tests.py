"""Sales under the Redis lock, without a race. manage.py test demo_project.serials; needs REDIS_URL."""

# ruff: noqa: PT009, PT027

from unittest import mock, skipIf

from django.test import TransactionTestCase

from demo_project.demo.redis_there import redis_missing
from demo_project.serials import strategies
from demo_project.serials.models import SerialNumber
from jobqueue.locks import RedisLock


@skipIf(redis_missing(), "no Redis")
class RedisSales(TransactionTestCase):
    """One number, two buyers."""

    def setUp(self) -> None:
        self.number = SerialNumber.objects.create(id="SN-1")

    def sold_to(self) -> str:
        self.number.refresh_from_db()
        return self.number.used_by

    def test_a_sale_stores_the_fence_of_its_lock(self) -> None:
        self.assertEqual(strategies.redis_retry("a"), "SN-1")
        self.assertEqual(self.sold_to(), "a")
        self.assertGreater(self.number.fence, 0)
        self.assertIsNone(strategies.redis_retry("b"))

    def test_a_locked_number_is_refused_or_skipped(self) -> None:
        with strategies._redis_locked(self.number):
            self.assertRaises(strategies.Refused, strategies.redis_once, "a")
            self.assertIsNone(strategies.redis_retry("a"))
        self.assertEqual(strategies.redis_once("a"), "SN-1")

    def test_a_buyer_whose_lock_has_expired_cannot_sell_after_the_next_buyer_has(self) -> None:
        for moment in ("before its first write", "before its second write"):
            with self.subTest(moment):
                SerialNumber.objects.update(is_used=False, used_by="", fence=0)
                with strategies._redis_locked(self.number) as late:
                    self.assertIsInstance(late, RedisLock)
                    # It has expired, and nobody told the holder.
                    late._end(late._entries.find().token)
                    if moment == "before its first write":
                        self.assertEqual(strategies.redis_once("b"), "SN-1")
                        self.assertIsNone(strategies._sell_fenced(self.number, "a", late))
                    else:
                        self.sell_between(late)
                self.assertEqual(self.sold_to(), "b")

    def sell_between(self, late: RedisLock) -> None:
        """b buys while a thinks."""

        def think(seconds: float) -> None:
            thinking.stop()
            self.assertEqual(strategies.redis_once("b"), "SN-1")

        thinking = mock.patch.object(strategies.time, "sleep", think)
        thinking.start()
        self.assertRaises(strategies.Refused, strategies._sell_fenced, self.number, "a", late)
