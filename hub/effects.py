"""What a decision does, told before and kept after: calls, changed rows, and what follows.

Pure. The planner in `review` makes it together with what is carried out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One call to the remote: `does` is look, read or write; `target` its object or reference."""

    does: str
    action: str
    target: str


@dataclass(frozen=True, slots=True)
class Change:
    """One value of one row here; without an `id` the row is made by it."""

    row: str
    id: int | None
    field: str
    before: str | int
    after: str | int


@dataclass(frozen=True, slots=True)
class Effects:
    """All that a decision does. `harm` (if the person is wrong) and `undo` (the decision that takes
    it back) are codes, empty where there is none.
    """

    action: str
    calls: tuple[Call, ...] = ()
    changes: tuple[Change, ...] = ()
    released: tuple[int, ...] = ()
    """Operations that waited behind it and may go now."""
    delay: float = 0.0
    """Seconds until it begins."""
    harm: str = ""
    undo: str = ""
    operation_id: int | None = None
    """The operation that stands for it afterwards; known once it is done."""

    def as_json(self) -> str:
        """To be stored with the decision."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read(stored: str) -> Effects:
    """What `as_json` stored; of a refused decision, no effects."""
    found = json.loads(stored or "{}")
    return Effects(
        found.get("action", ""),
        tuple(Call(**one) for one in found.get("calls", ())),
        tuple(Change(**one) for one in found.get("changes", ())),
        tuple(found.get("released", ())),
        found.get("delay", 0.0),
        found.get("harm", ""),
        found.get("undo", ""),
        found.get("operation_id"),
    )
