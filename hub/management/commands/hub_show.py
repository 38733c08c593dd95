"""Show operations: state, attempts, evidence, decisions."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from hub.story import as_dict, as_text


class Command(BaseCommand):
    help = (
        "Show operations with their attempts, evidence and decisions; "
        "--json prints one object per line."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("ids", nargs="+", type=int, metavar="ID")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        missing = []
        for operation_id in options["ids"]:
            told = as_dict(operation_id)
            if told is None:
                missing.append(str(operation_id))
            elif options["json"]:
                self.stdout.write(json.dumps(told, ensure_ascii=False))
            else:
                self.stdout.write(as_text(told))
        if missing:
            raise CommandError(f"There is no operation {', '.join(missing)}.")
