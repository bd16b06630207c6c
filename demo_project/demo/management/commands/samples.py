"""python manage.py samples: what `make serve` makes before it starts a worker and the site, for the compose file."""

from argparse import ArgumentParser
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from demo_project.demo.people import USER, make_superuser
from demo_project.demo.samples import replace_samples


class Command(BaseCommand):
    """Exit status 0."""

    help = "Make the tables, the sample jobs and a superuser with this password. Run it while no worker runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--password", default="", help="default: a random one, which is printed")
        parser.add_argument("--at", default="", metavar="URL", help="the address of the site, which is printed")

    def handle(self, *args: Any, **given: Any) -> None:
        call_command("migrate", verbosity=0)
        password = make_superuser(given["password"])
        jobs = replace_samples()
        self.stdout.write(f"{jobs} sample jobs. {given['at']} Log in as {USER} with the password {password}.")
