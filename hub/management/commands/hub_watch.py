"""Say in one line, and by the exit code, whether work stands still."""

from __future__ import annotations

import socket
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError

from hub import health


class Command(BaseCommand):
    help = (
        "Exit 0 when workers do their work, 1 when due work is old and no heartbeat moves "
        "(HUB_WATCHDOG_DUE_AGE, HUB_WATCHDOG_BEAT_AGE); one line says why. For other supervisors "
        "and container health checks."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--here", action="store_true", help="count only the heartbeats of this host"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found = health.standing(
                due_age=settings.HUB_WATCHDOG_DUE_AGE,
                beat_age=settings.HUB_WATCHDOG_BEAT_AGE,
                host=socket.gethostname() if options["here"] else "",
            )
        except DatabaseError as error:
            self.stdout.write(f"unknown: the database does not answer ({type(error).__name__})")
            raise SystemExit(1) from None
        self.stdout.write(found.line)
        if found.why:
            raise SystemExit(1)
