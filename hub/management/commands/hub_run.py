"""Run workers: one supervised Django-Q2 cluster."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from hub.management.supervisor import Ages, Supervisor, clear_strays, prepare


class Command(BaseCommand):
    help = (
        "Start the workers and keep them going: restarts a cluster that ends or stands still, "
        "clears what a killed one leaves behind, and stops within 15 seconds on SIGTERM or Ctrl-C."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--look-every", type=float, default=5.0, help="seconds between two looks at the cluster"
        )
        parser.add_argument(
            "--grace", type=float, default=10.0, help="seconds a polite stop may take"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        clear_strays(self._say)
        try:
            prepare()
        except ImproperlyConfigured as error:
            raise CommandError(f"No worker is started: {error}") from None
        except DatabaseError as error:
            raise CommandError(
                f"No worker is started: the database does not answer as it should ({error}). "
                "Is it reachable, and has `manage.py migrate` been run?"
            ) from None
        ages = Ages(
            due=settings.HUB_WATCHDOG_DUE_AGE,
            beat=settings.HUB_WATCHDOG_BEAT_AGE,
            look=options["look_every"],
            grace=options["grace"],
        )
        code = Supervisor(ages, say=self._say).run()
        if code:
            raise SystemExit(code)

    def _say(self, text: str) -> None:
        self.stderr.write(f"hub_run: {text}")
        self.stderr.flush()
