"""Work off what is due, without Django-Q2."""

from __future__ import annotations

import signal
import time
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from hub import tasks
from hub.delivery import Drain
from hub.models import Operation
from hub.states import MOVING


class Command(BaseCommand):
    help = (
        "Work until nothing is due; with --rest SECONDS, until everything is at rest or that time "
        "is over."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--budget", type=float, default=3600.0, help="seconds at most")
        parser.add_argument(
            "--rest", type=float, default=None, help="wait so many seconds for what comes back"
        )
        parser.add_argument("--forever", action="store_true", help="stay until stopped")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            tasks.refuse_wrong_times()
        except ImproperlyConfigured as error:
            raise CommandError(f"Nothing is started: {error}") from None
        end = time.monotonic() + (options["rest"] or 0.0)
        stopped: list[int] = []
        total = 0
        while True:
            drain = Drain(
                budget=options["budget"],
                until_idle=not options["forever"],
                signals=True,
            )

            def stop(*_: Any, drain: Drain = drain) -> None:
                stopped.append(1)
                drain.stop()

            signal.signal(signal.SIGINT, stop)
            total += drain.run()
            if stopped or drain.stopped or options["forever"] or options["rest"] is None:
                break
            moving = Operation.objects.filter(state__in=[s.value for s in MOVING]).exists()
            if not moving or time.monotonic() >= end:
                break
            time.sleep(0.05)
        self.stdout.write(f"{total} moves settled")
