"""What really happened: the effect ledger and the request log."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

REQUESTS_KEPT = 200_000


class Effect(NamedTuple):
    """One change of one record. ``digest`` is the SHA-256 of the request body that caused it;
    ``method`` is ``person`` and ``digest`` empty when somebody changed it by hand."""

    id: int
    portal: str
    method: str
    entity: str
    remote_id: str
    reference: str | None
    version: str | None
    digest: str
    fields: dict[str, Any]
    at: float


class Asked(NamedTuple):
    """One request. ``status`` 0 means that no answer was given; ``fault`` joins names with +."""

    n: int
    portal: str
    method: str
    at: float
    digest: str
    reference: str | None
    fault: str | None
    status: int


class Ledger:
    """Effects, all of them, and the latest requests."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.requests: deque[Asked] = deque(maxlen=REQUESTS_KEPT)
        self.asked = 0

    def effect(
        self,
        portal: str,
        method: str,
        entity: str,
        remote_id: int,
        reference: str | None,
        version: str | None,
        digest: str,
        fields: dict[str, Any],
        at: float,
    ) -> None:
        """Record that a change was committed."""
        self.effects.append(
            Effect(
                len(self.effects) + 1,
                portal,
                method,
                entity,
                str(remote_id),
                reference,
                version,
                digest,
                fields,
                at,
            )
        )

    def request(
        self,
        portal: str,
        method: str,
        at: float,
        digest: str,
        reference: str | None,
        fault: str | None,
        status: int,
    ) -> None:
        """Record that a request was received, and how it ended."""
        self.asked += 1
        self.requests.append(
            Asked(self.asked, portal, method, at, digest, reference, fault, status)
        )
