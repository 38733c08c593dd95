"""Situations a whole run must meet at least once: a check without its case proves nothing.

A run has several processes, each with its own worlds. Each writes down what it has met, in the
run's own folder; whoever judges the run reads them all.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
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
    """Counts of what happened, over all worlds of this process; see `of_the_run`."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self._folder = Path(os.environ["HUB_TEST_HOME"]) / "situations"

    def of_the_run(self) -> Counter[str]:
        """What all processes of this run have met."""
        found: Counter[str] = Counter()
        for path in self._folder.glob("*.json"):
            found.update(json.loads(path.read_text()))
        return found

    def _keep(self) -> None:
        self._folder.mkdir(exist_ok=True)
        mine = self._folder / f"{os.getpid()}.json"
        draft = mine.with_suffix(".draft")
        draft.write_text(json.dumps(self.met))
        draft.rename(mine)

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
        self._keep()


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
