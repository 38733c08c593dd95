"""How urgent a case is, as one number from 0 to 100 and the sentence it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Share(StrEnum):
    """What makes a case urgent."""

    HARM = "harm"
    IRREVERSIBLE = "irreversible"
    HELD = "held"
    KEY_LIFE = "keylife"
    AGE = "age"


WEIGHTS: dict[Share, float] = {
    Share.HARM: 35.0,
    Share.IRREVERSIBLE: 25.0,
    Share.HELD: 15.0,
    Share.KEY_LIFE: 15.0,
    Share.AGE: 10.0,
}
MANY_HELD = 10
"""So many waiting behind a case count in full; more count no more."""
USUAL_HARM = 0.5
"""The harm of a record type that says nothing of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the number: its points, and how many there are of what is counted."""

    share: Share
    points: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Urgency:
    """The number and its parts, the largest first; the points add up to the number."""

    number: int
    parts: tuple[Part, ...]


def urgency(
    *,
    harm: float = USUAL_HARM,
    irreversible: float = 0.0,
    held: int = 0,
    key_used: float = 0.0,
    age: float = 0.0,
    limit: float = 86_400.0,
) -> Urgency:
    """How urgent: `harm` and `irreversible` are 0 to 1, `key_used` the share of the key's life that
    is gone (0 where there is none), `age` and `limit` seconds. Anything beyond counts as 0 or 1.
    """
    shares = {
        Share.HARM: harm,
        Share.IRREVERSIBLE: irreversible,
        Share.HELD: held / MANY_HELD,
        Share.KEY_LIFE: key_used,
        Share.AGE: age / limit if limit > 0 else 1.0,
    }
    exact = {name: WEIGHTS[name] * min(1.0, max(0.0, value)) for name, value in shares.items()}
    number = int(sum(exact.values()) + 0.5)
    points = {name: int(value) for name, value in exact.items()}
    # The sentence has to add up: what rounding took goes where most was taken.
    by_rest = sorted(exact, key=lambda name: exact[name] - points[name], reverse=True)
    for name in by_rest[: number - sum(points.values())]:
        points[name] += 1
    parts = [
        Part(name, points[name], held if name is Share.HELD else 0)
        for name in sorted(points, key=lambda name: points[name], reverse=True)
        if points[name]
    ]
    return Urgency(number, tuple(parts))
