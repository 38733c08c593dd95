"""Questions about the rows of one stream, asked by the claim, the marker and the sweep.

Everything here is pure. The row numbers in the comments are those of protocol §5.
"""

from tests.model.records import FINAL, LEASED, WAITS, Kind, Operation, State, World
from tests.model.rules import Capability, Rules, Scenario

LOOKS = frozenset({Capability.KEY_AND_LOOK, Capability.CONDITIONAL, Capability.FULL_STATE})


def busy(rules: Rules, row: Operation) -> bool:
    """Say whether the row holds the stream (C4)."""
    if row.state in LEASED:
        return True
    if not rules.doubt_blocks_stream:
        return False
    return row.state is State.UNCERTAIN or (row.maybe_executed and row.state not in FINAL)


def is_open(rules: Rules, row: Operation) -> bool:
    """Say whether the row is open (§2): moving, or in review with doubt."""
    if row.state in WAITS or row.state in LEASED:
        return True
    if not rules.doubt_blocks_stream:
        return False
    return row.state is State.UNCERTAIN or (row.state is State.REVIEW and row.maybe_executed)


def others_busy(rules: Rules, world: World, index: int) -> bool:
    """C2: somebody else has the stream."""
    return any(busy(rules, row) for j, row in enumerate(world.rows) if j != index)


def first_in_line(rules: Rules, world: World, index: int) -> bool:
    """§12: the lowest (version, id) among the open rows."""
    mine = (world.rows[index].version, index)
    return all((row.version, j) >= mine for j, row in enumerate(world.rows) if is_open(rules, row))


def stale(world: World, index: int) -> bool:
    """§12: a higher version has been sent."""
    mine = world.rows[index].version
    return any(row.version > mine and row.first_sent for row in world.rows)


def held(scenario: Scenario, rules: Rules, world: World, index: int) -> bool:
    """§12: a late copy of another row may still arrive and do harm to this one."""
    if not rules.hold:
        return False
    for j, row in enumerate(world.rows):
        if j == index or not row.hold:
            continue
        if (
            scenario.capability is Capability.CONDITIONAL
            and row.kind is Kind.CREATE
            and world.rows[index].kind is not Kind.DELETE
        ):
            continue  # create-if-absent harms a delete only
        return True
    return False


def heir_of(rules: Rules, world: World, index: int) -> Operation | None:
    """§12: the row discarded in doubt whose doubt this create, or blind delete, inherits."""
    row = world.rows[index]
    if not rules.doubt_inherited or world.mapping >= 0 or row.kind is Kind.UPDATE:
        return None
    if row.examined and rules.inherited_doubt_once:
        return None
    found = [
        other
        for j, other in enumerate(world.rows)
        if j != index
        and other.state is State.DISCARDED
        and other.maybe_executed
        and other.kind is Kind.CREATE
    ]
    return max(found, key=lambda other: other.quiet, default=None)


def key_alive(scenario: Scenario, row: Operation) -> bool:
    """§8: `now + max_send + max_exec < first_sent_at + key_ttl·0.9`."""
    timing = scenario.timing
    return row.key > timing.max_send + timing.max_exec + timing.key_slack


def repeat_harmless(scenario: Scenario, rules: Rules, row: Operation) -> bool:
    """Row 2: whether a row in doubt may be sent again as it is, now."""
    match scenario.capability:
        case Capability.CONDITIONAL | Capability.FULL_STATE:
            return True
        case Capability.KEY | Capability.KEY_AND_LOOK:
            if row.inherited and rules.inherited_doubt_needs_absence:
                return False
            alive = key_alive(scenario, row) or not rules.key_life_checked
            return alive and (scenario.key_atomic or row.quiet == 0)
        case _:
            return False


def can_look(scenario: Scenario, row: Operation) -> bool:
    """Say whether the remote can be asked; a stale result has named what to ask a key-only for."""
    if scenario.capability is Capability.REFERENCE or scenario.capability in LOOKS:
        return True
    return scenario.capability is Capability.KEY and row.evidence


def claimable_itself(scenario: Scenario, rules: Rules, row: Operation) -> bool:
    """The part of row 2 that reads the row's own columns; checked as the statement writes."""
    if row.state not in WAITS or row.sends >= scenario.max_sends:
        return False
    if not row.maybe_executed:
        return True
    return row.state is State.RETRY and repeat_harmless(scenario, rules, row)


def claimable_by_stream(scenario: Scenario, rules: Rules, world: World, index: int) -> bool:
    """The part of row 2 that reads other rows, from a snapshot that may be old by the write."""
    return (
        first_in_line(rules, world, index)
        and not others_busy(rules, world, index)
        and not stale(world, index)
        and not held(scenario, rules, world, index)
        and heir_of(rules, world, index) is None
    )
