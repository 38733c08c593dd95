"""The invariants of the model, each a pure question about one world."""

from collections.abc import Callable

from tests.model.records import RESTING, Kind, State, World
from tests.model.rules import Capability, Scenario

Invariant = Callable[[Scenario, World], str]


def no_duplicate_effect(scenario: Scenario, world: World) -> str:
    """I1: one effect per row; per created object one more only for each decision *send again*."""
    if scenario.capability is Capability.FULL_STATE or world.excused:
        return ""  # b′: writing the same state again is no second effect
    for row, entry in zip(world.rows, world.ledger, strict=True):
        if entry.effects > 1:
            return f"I1: v{row.version} had two effects"
    made = sum(1 for thing in world.things if thing.maker >= 0)
    if made > 1 + world.again and not any(row.kind is Kind.DELETE for row in world.rows):
        return f"I1: {made} objects for one entity, {world.again} decisions to send again"
    return ""


def confirmed_exists(scenario: Scenario, world: World) -> str:
    """I3: what is confirmed has had its effect, for that version."""
    for row in world.rows:
        if row.state is not State.CONFIRMED:
            continue
        if row.kind is Kind.DELETE:
            continue
        done = any(
            other.version == row.version and entry.effects
            for other, entry in zip(world.rows, world.ledger, strict=True)
        )
        if not done:
            return f"I3: v{row.version} is confirmed and never happened"
    return ""


def closed_without_effect(scenario: Scenario, world: World) -> str:
    """I4: `failed`, or `discarded` without doubt, has no effect, now or later."""
    for row, entry in zip(world.rows, world.ledger, strict=True):
        closed = row.state is State.FAILED or row.state is State.DISCARDED
        hidden = entry.lag < 0  # A3 broken: the hub was told that it is not there
        if closed and not row.maybe_executed and entry.effects and not hidden:
            return f"I4: v{row.version} is {row.state} without doubt, and it happened"
    return ""


def one_worker(scenario: Scenario, world: World) -> str:
    """I5: a stale result settles nothing."""
    return world.broken


def no_late_overwrite(scenario: Scenario, world: World) -> str:
    """I8: once version n is confirmed, the remote never shows a lower one."""
    highest = max((r.version for r in world.rows if r.state is State.CONFIRMED), default=0)
    if not highest or world.excused:
        return ""
    deleted = any(
        r.kind is Kind.DELETE and r.version == highest and r.state is State.CONFIRMED
        for r in world.rows
    )
    if deleted:
        if world.again == 0 and any(thing.alive for thing in world.things):
            return f"I8: v{highest} deleted the object, and it is back"
        return ""
    shown = world.things[world.mapping].version if world.mapping >= 0 else highest
    return f"I8: v{highest} is confirmed and the remote shows v{shown}" if shown < highest else ""


INVARIANTS: dict[str, Invariant] = {
    "I1": no_duplicate_effect,
    "I3": confirmed_exists,
    "I4": closed_without_effect,
    "I5": one_worker,
    "I8": no_late_overwrite,
}


def rests(world: World) -> bool:
    """I21: nothing moves, or only behind a review in doubt, which a person must settle (§12)."""
    blocked = any(row.state is State.REVIEW and row.maybe_executed for row in world.rows)
    for row in world.rows:
        if row.state in RESTING:
            continue
        if blocked and not row.maybe_executed and row.state in {State.PENDING, State.RETRY}:
            continue
        return False
    return True
