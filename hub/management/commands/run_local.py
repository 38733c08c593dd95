"""`make run`: the whole demo on this machine until Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from hub.management import demo, local, supervisor


class Command(BaseCommand):
    help = (
        "Run web, workers and the Bitrix24 stand-in with the demo's data on this machine, until "
        "Ctrl-C. Started again, it goes on where it was."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.HUB_LOCAL:
            raise CommandError(
                "run_local is for this machine only: set HUB_LOCAL=1 (`make run` does)."
            )
        try:
            ports = local.ports_of(settings.HUB_PORT)
        except local.NoPort as error:
            raise CommandError(str(error), returncode=2) from None
        address = f"http://127.0.0.1:{settings.HUB_PORT}/"
        lock = local.Lock(Path(settings.HUB_HOME) / "run.lock")
        try:
            lock.take(f"process {os.getpid()}, {address}")
            try:
                # What a killed run left behind is on its way out, so it gets a moment.
                local.claim_ports(ports, patience=15.0 if lock.unclean else 0.0)
            except local.Occupied:
                lock.release()
                raise
        except local.Occupied as error:
            raise CommandError(str(error)) from None
        made = self._prepare()
        environment = {**local.ENGINE, **os.environ, "HUB_LOCAL": "1"}
        runner = local.Runner(
            local.children(),
            say=self._say,
            environment=environment,
            ready=lambda: (
                local.answers(f"{address}health/ready")
                and local.answers(f"{demo.simulator_url()}/_sim/status")
            ),
            greet=lambda: self._greet(address, made),
        )
        runner.run()
        lock.release()
        self._say("stopped; `make run` goes on where it was")

    def _prepare(self) -> demo.Made:
        supervisor.clear_strays(self._say)
        self._say("preparing the database ...")
        call_command("migrate", verbosity=0, interactive=False)
        made = demo.ensure()
        connection.close()
        return made

    def _greet(self, address: str, made: demo.Made) -> None:
        logins = ", ".join(demo.LOGINS)
        self.stdout.write(
            f"\n  The hub runs at {address}admin/\n"
            f"  Logins   {logins}\n"
            f"  Password {made.password}\n"
            f"  Stand-in {demo.simulator_url()}/_sim/\n"
            f"  Ctrl-C stops everything.\n\n"
        )
        self.stdout.flush()

    def _say(self, text: str) -> None:
        self.stdout.write(f"run: {text}")
        self.stdout.flush()
