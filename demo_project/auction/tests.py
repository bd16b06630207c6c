"""The rules of the auction, one customer at a time: python manage.py test demo_project.auction."""

# ruff: noqa: PT009, PT027

from datetime import timedelta

from django.test import TestCase
from django.utils import timezone

from demo_project.auction import rules
from demo_project.auction.models import Offer, Trade

SHOE = ("shoe", "270")


def due(seconds: float = 60):
    """A date in the future, or in the past for a negative number."""
    return timezone.now() + timedelta(seconds=seconds)


class Rules(TestCase):
    """No bid above the lowest ask, no ask below the highest bid."""

    def test_a_bid_up_to_the_lowest_ask_is_taken_and_one_above_refused(self):
        rules.ask(*SHOE, 100, "ann", due())
        rules.bid(*SHOE, 100, "bob", due())
        with self.assertRaisesMessage(rules.Refused, "somebody sells for 100"):
            rules.bid(*SHOE, 101, "bob", due())
        self.assertEqual(rules.market(*SHOE), (100, 100))

    def test_an_ask_down_to_the_highest_bid_is_taken_and_one_below_refused(self):
        rules.bid(*SHOE, 90, "bob", due())
        rules.ask(*SHOE, 90, "ann", due())
        with self.assertRaisesMessage(rules.Refused, "somebody pays 90"):
            rules.ask(*SHOE, 89, "ann", due())

    def test_other_sizes_and_products_are_other_markets(self):
        rules.ask(*SHOE, 50, "ann", due())
        rules.bid("shoe", "280", 99, "bob", due())
        rules.bid("hat", "270", 99, "bob", due())
        self.assertFalse(rules.is_crossed(*SHOE))

    def test_expired_cancelled_and_signed_offers_do_not_count(self):
        rules.ask(*SHOE, 10, "ann", due(-1))
        rules.cancel(rules.ask(*SHOE, 20, "ann", due()), "ann")
        rules.buy_now(rules.ask(*SHOE, 30, "ann", due()), "cid")
        rules.bid(*SHOE, 99, "bob", due())
        self.assertEqual(rules.market(*SHOE), (99, None))
        self.assertFalse(rules.is_crossed(*SHOE))

    def test_a_trade_takes_the_best_offer_at_its_price(self):
        rules.ask(*SHOE, 120, "ann", due())
        cheap = rules.ask(*SHOE, 110, "dan", due())
        self.assertEqual(rules.best(*SHOE, Offer.Side.ASK), cheap)
        trade = rules.buy_now(cheap, "bob")
        self.assertEqual((trade.price, trade.taker), (110, "bob"))
        low, high = rules.bid(*SHOE, 80, "bob", due()), rules.bid(*SHOE, 85, "cid", due())
        with self.assertRaises(rules.Refused):
            rules.sell_now(low, "ann")
        self.assertEqual(rules.sell_now(high, "ann").price, 85)

    def test_a_trade_looks_again_and_is_refused_if_what_was_seen_is_gone(self):
        seen = rules.ask(*SHOE, 100, "ann", due())
        rules.buy_now(seen, "bob")
        with self.assertRaises(rules.Refused):
            rules.buy_now(seen, "cid")
        seen = rules.ask(*SHOE, 100, "ann", due())
        Offer.objects.filter(pk=seen.pk).update(due_at=due(-1))
        with self.assertRaises(rules.Refused):
            rules.buy_now(seen, "cid")
        self.assertEqual(Trade.objects.count(), 1)

    def test_only_the_owner_cancels_and_only_what_is_live(self):
        offer = rules.bid(*SHOE, 70, "bob", due())
        with self.assertRaises(rules.Refused):
            rules.cancel(offer, "eve")
        rules.cancel(offer, "bob")
        with self.assertRaises(rules.Refused):
            rules.cancel(offer, "bob")
        self.assertIsNone(rules.best(*SHOE, Offer.Side.BID))

    def test_a_crossed_market_is_noticed(self):
        for side, price in ((Offer.Side.BID, 100), (Offer.Side.ASK, 99)):
            Offer.objects.create(product="shoe", size="270", side=side, price=price, owner="x", due_at=due())
        self.assertTrue(rules.is_crossed(*SHOE))
