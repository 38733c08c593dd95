"""Load the demo's data, and tell its story."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from hub.management import demo


class Command(BaseCommand):
    help = (
        "Make the demo's tenants, connections and logins (what is there is left alone); with "
        "--story, submit its changes one after the other and order faults from the stand-in."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--story", action="store_true", help="tell the story, then end")
        parser.add_argument("--pace", type=float, default=1.0, help="1 is usual, 0 at once")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.HUB_LOCAL:
            raise CommandError(
                "The demo belongs to a local run: its accounts and addresses have no place in "
                "production. Set HUB_LOCAL=1 to load it on this machine."
            )
        made = demo.ensure()
        if not options["story"]:
            for line in made.created:
                self.stdout.write(f"made {line}")
            self.stdout.write(f"logins {', '.join(demo.LOGINS)}: password {made.password}")
            return
        stopped: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.append(1))
        fresh = demo.tell(
            say=lambda text: self.stderr.write(f"demo: {text}"),
            wait=demo.sleeper(lambda: bool(stopped)),
            pace=options["pace"],
        )
        self.stdout.write(f"demo: {fresh} changes submitted")
