"""Submit an operation from the command line."""

from __future__ import annotations

import io
import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from hub import keys, outbox
from hub.contract import BadPayload
from hub.models import Connection
from hub.redaction import clean


class Command(BaseCommand):
    help = (
        "Submit one operation and print its id; a duplicate prints the same id. Exits 2 for what "
        "cannot be right, 3 for the same intent with another payload. With --lines: one JSON array "
        "per line from standard input, "
        '["CONNECTION", "ACTION", "SOURCE_ID", VERSION, {...}], and an id per line.'
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("connection", nargs="?")
        parser.add_argument("action", nargs="?")
        parser.add_argument("source_id", nargs="?")
        parser.add_argument("version", nargs="?")
        parser.add_argument("json", nargs="?")
        parser.add_argument("--source", default="hub", help="name of the source system")
        parser.add_argument("--lines", action="store_true", help="read from standard input")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["lines"]:
            self._lines(options["source"])
            return
        given = [options[name] for name in ("connection", "action", "source_id", "version", "json")]
        if None in given:
            raise CommandError(
                "CONNECTION ACTION SOURCE_ID VERSION JSON are all needed.", returncode=2
            )
        self._one(*given, source=options["source"])

    def _lines(self, source: str) -> None:
        worst = 0
        if isinstance(sys.stdin, io.TextIOWrapper):
            # Bytes that are no UTF-8 are refused with their line, instead of ending them all.
            sys.stdin.reconfigure(errors="surrogateescape")
        for number, line in enumerate(sys.stdin, start=1):
            if not line.strip():
                continue
            try:
                row = keys.parse_payload(line)
                if not isinstance(row, list) or len(row) != 5:
                    raise BadPayload("five values are needed in a JSON array.")
                self._one(*row, source=source)
            except BadPayload as error:
                self.stderr.write(f"line {number}: {error}")
                self.stdout.write("")
                worst = max(worst, 2)
            except CommandError as error:
                self.stderr.write(f"line {number}: {error}")
                self.stdout.write("")
                worst = max(worst, error.returncode)
        if worst:
            raise SystemExit(worst)

    def _one(
        self, name: Any, action: Any, source_id: Any, version: Any, payload: Any, *, source: str
    ) -> None:
        source_id = source_id if isinstance(source_id, str) else json.dumps(source_id)
        # Two sources may use one id: what is said of it names both.
        whose = clean(f"{source}/{source_id}", 120)
        try:
            connection = self._connection(keys.check_text("connection", str(name)))
            submitted = outbox.submit(
                connection,
                str(action),
                source_id=source_id,
                version=_version(version),
                fields=keys.parse_payload(payload) if isinstance(payload, str) else payload,
                source_system=source,
            )
        except outbox.Drift as error:
            raise CommandError(f"{whose}: {error}", returncode=3) from None
        except (BadPayload, outbox.Impossible) as error:
            raise CommandError(f"{whose}: {error}", returncode=2) from None
        self.stdout.write(str(submitted.operation_id))

    def _connection(self, name: str) -> Connection:
        connection = Connection.objects.select_related("tenant").filter(name=name).first()
        if connection is None:
            known = ", ".join(Connection.objects.values_list("name", flat=True)) or "none"
            raise BadPayload(f"connection: there is no connection {name!r} (there are: {known}).")
        return connection


def _version(version: Any) -> int:
    if isinstance(version, str):
        if not (version.isascii() and version.isdigit() and len(version) < 20):
            raise BadPayload(f"version: must be a whole number, not {version[:40]!r}.")
        return int(version)
    return keys.check_version(version)
