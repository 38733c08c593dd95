"""Keeping records and ledger across restarts in one JSON file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .ledger import Effect
from .service import Service

FORMAT = 1


class StateFile:
    """A file that is replaced as a whole, so that a crash leaves the old one or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = (0, 0)

    def load(self, service: Service) -> None:
        """Fill an empty service; a missing file is a fresh start.

        Raises:
            ValueError: the file is there but is not ours; the text says what to do.
        """
        if not self.path.exists():
            return
        try:
            kept = json.loads(self.path.read_text())
            if kept["format"] != FORMAT:
                raise KeyError("format")
            for name, dumped in kept["portals"].items():
                service.portal(name).store.load(dumped)
            service.ledger.effects = [Effect(*row) for row in kept["effects"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path} is not a state file of this stand-in ({error}); move it away or "
                "name another file with --state"
            ) from error
        self._written = _stamp(service)

    def save(self, service: Service) -> None:
        """Write if anything was committed since the last time."""
        if self._written == _stamp(service):
            return
        kept: dict[str, Any] = {
            "format": FORMAT,
            "portals": {name: portal.store.dump() for name, portal in service.portals.items()},
            "effects": [list(effect) for effect in service.ledger.effects],
        }
        beside = self.path.with_name(self.path.name + ".new")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w") as file:
            file.write(json.dumps(kept))  # json.dump would encode in Python, ten times slower
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        self._written = _stamp(service)


def _stamp(service: Service) -> tuple[int, int]:
    """Every change of a record is an effect, so their number says whether something is new."""
    return service.generation, len(service.ledger.effects)
