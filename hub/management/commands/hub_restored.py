"""To be run after a restore or a failover, before workers start."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from hub.management import restore


class Command(BaseCommand):
    help = (
        "After a backup was restored or a replica took over, and before workers start: say what "
        "will be treated as unknown, then raise epoch, tokens and versions. Nothing is sent."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument(
            "--at",
            metavar="TIME",
            help="when the lost installation stopped sending, as 2026-11-30T21:46:00+00:00 "
            "(default: now, which is always safe)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        at = _moment(options["at"])
        try:
            restore.refuse_while_working()
        except restore.WorkersAlive as error:
            raise CommandError(str(error)) from None
        marked = restore.waiting()
        total = sum(row.count for row in marked)
        self.stdout.write(
            f"{total} unfinished operations will be treated as unknown: looked for before anything "
            "is sent, one per entity at a time."
        )
        for row in marked:
            self.stdout.write(f"  {row.connection}: {row.count} {row.state}")
        if not options["yes"] and not self._agreed():
            raise CommandError("Nothing was changed.")
        try:
            raised = restore.raise_epoch(at)
        except (restore.WorkersAlive, ValueError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(
            f"epoch {raised.epoch}, tokens above {raised.token_base}, versions above "
            f"{raised.version_base}, restored as of {raised.restored_at.isoformat()}. "
            "Start the workers now (hub_run). What was done after the backup exists only in the "
            "remote systems: compare them afterwards."
        )

    def _agreed(self) -> bool:
        try:
            return input("Type yes to go on: ").strip().lower() == "yes"
        except EOFError:
            return False


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"--at {text!r} is no time: write it as 2026-11-30T21:46:00+00:00."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
