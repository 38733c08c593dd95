"""Situations a whole run must meet at least once: a check without its case proves nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hub.models import Evidence as EvidenceRow
from hub.states import Outcome, Purpose, State

if TYPE_CHECKING:
    from tests.harness.invariants import Evidence

FENCED = "a settle that was fenced off"
HAPPENED = "an unknown outcome that had happened"
NOT_HAPPENED = "an unknown outcome that had not happened"
HELD = "a hold that delayed the next version"
BREAKER = "a breaker that opened"
LAPSED_SENT = "a worker lost between marker and settle"
LAPSED_RUNNING = "a worker lost between claim and marker"
ALL = (FENCED, HAPPENED, NOT_HAPPENED, HELD, BREAKER, LAPSED_SENT, LAPSED_RUNNING)


class Situations:
    """Counts of what happened, over all worlds of a test run."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()

    def note(self, e: Evidence) -> None:
        """Count what one world's history holds."""
        late = set(
            EvidenceRow.objects.filter(kind="late_result").values_list("operation_id", flat=True)
        )
        self.met[FENCED] += len(late)
        for operation_id, attempts in e.attempts.items():
            sent = [a for a in attempts if a.purpose == Purpose.SEND.value]
            unknown = [a for a in sent if a.outcome == Outcome.UNKNOWN.value and a.left == "maybe"]
            done = [a for a in sent if a.outcome == Outcome.DONE.value]
            effects = e.effects_of.get(operation_id, [])
            if unknown and effects and not done:
                self.met[HAPPENED] += 1
            if unknown and len(unknown) + len(done) > len(effects):
                self.met[NOT_HAPPENED] += 1
        for entry in e.audit:
            if entry.kind == "breaker" and entry.after == "open":
                self.met[BREAKER] += 1
            if (
                entry.kind != "move"
                or entry.old_token is None
                or entry.old_token == entry.new_token
            ):
                continue
            if entry.before == State.SENT.value and entry.after != State.SENT.value:
                self.met[LAPSED_SENT] += 1
            elif entry.before == State.RUNNING.value and entry.after in ("pending", "retry"):
                self.met[LAPSED_RUNNING] += 1
        self.met[HELD] += _held(e)


def _held(e: Evidence) -> int:
    """Versions that were first claimed only once an earlier version's hold had ended, and were
    there before.
    """
    streams: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in e.operations.values():
        streams[row.connection_id, row.stream].append(row.pk)
    count = 0
    for found in streams.values():
        rows = [e.operations[pk] for pk in found]
        for held in rows:
            if held.hold_until is None:
                continue
            for other in rows:
                if (other.version, other.pk) <= (held.version, held.pk) or not e.attempts[other.pk]:
                    continue
                first = e.attempts[other.pk][0].claimed_at
                if other.created_at < held.hold_until <= first:
                    count += 1
    return count
