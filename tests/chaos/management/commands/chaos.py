"""manage.py chaos produce|operate: the load of a trial."""

from django.core.management.base import BaseCommand

from tests.chaos.load import operate, produce


class Command(BaseCommand):
    """Run one producer, or the operator."""

    requires_system_checks = ()

    def add_arguments(self, parser):
        """Role, seconds and seed; the number of a producer."""
        parser.add_argument("role", choices=("produce", "operate"))
        parser.add_argument("seconds", type=float)
        parser.add_argument("seed")
        parser.add_argument("--number", type=int, default=1)

    def handle(self, *, role, seconds, seed, number, **options):
        """Until the time is over."""
        if role == "produce":
            produce(number, seconds, seed)
        else:
            operate(seconds, seed)
