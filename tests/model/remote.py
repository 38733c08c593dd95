"""The remote: what becomes of a request, and what a look shows.

It keeps assumption A3: a request that has used up its `life` is never executed.
"""

from typing import NamedTuple

from tests.model.records import (
    Footprint,
    KeyRecord,
    Kind,
    Outcome,
    Request,
    Step,
    Thing,
    World,
)
from tests.model.rules import Capability, Rules, Scenario

KEYED = frozenset({Capability.KEY, Capability.KEY_AND_LOOK})


NEVER = -1  # the lag of an effect that breaks A3: no search shows it in time


class Handled(NamedTuple):
    """One thing the remote may do next with a request."""

    text: str
    world: World
    request: Request


def _ledger(world: World, row: int, entry: Footprint) -> World:
    return world._replace(ledger=(*world.ledger[:row], entry, *world.ledger[row + 1 :]))


def _answered(request: Request, reply: Outcome, thing: int = -1) -> Request:
    return request._replace(step=Step.ANSWERED, reply=reply, thing=thing)


def _apply(scenario: Scenario, world: World, request: Request) -> tuple[World, Outcome, int]:
    """Carry the write out, or refuse it by its own condition."""
    row = world.rows[request.row]
    conditional = scenario.capability is Capability.CONDITIONAL
    match row.kind:
        case Kind.CREATE:
            if conditional and any(thing.alive for thing in world.things):
                return world, Outcome.K, -1
            things = (*world.things, Thing(row.version, request.row))
            target = len(things) - 1
        case Kind.UPDATE:
            target = world.mapping
            if target < 0 or not world.things[target].alive:
                return world, Outcome.K, -1
            if conditional and world.things[target].version != row.expected:
                return world, Outcome.K, -1
            things = _changed(world, target, Thing(row.version, world.things[target].maker))
        case _:
            target = next((i for i, thing in enumerate(world.things) if thing.alive), -1)
            if target < 0:
                return world, Outcome.X, -1
            gone = Thing(row.version, world.things[target].maker, alive=False)
            things = _changed(world, target, gone)
    entry = world.ledger[request.row]
    entry = entry._replace(effects=min(2, entry.effects + 1), thing=target)
    return _ledger(world._replace(things=things), request.row, entry), Outcome.X, target


def _changed(world: World, index: int, thing: Thing) -> tuple[Thing, ...]:
    return (*world.things[:index], thing, *world.things[index + 1 :])


def _done(scenario: Scenario, world: World, request: Request) -> list[Handled]:
    """Carry the write out; a search may show it at once, in time, or (A3 broken) late."""
    applied, reply, thing = _apply(scenario, world, request)
    if scenario.capability in KEYED:
        entry = applied.ledger[request.row]
        applied = _ledger(applied, request.row, entry._replace(key=KeyRecord.DONE))
    out = []
    lags = [(0, False)]
    if applied.things != world.things:
        if scenario.timing.index_lag:
            lags.append((scenario.timing.index_lag, False))
        if world.breaches:
            lags.append((NEVER, True))
    for lag, breach in lags:
        after = applied
        if lag:
            entry = after.ledger[request.row]
            after = _ledger(after, request.row, entry._replace(lag=lag))
        if breach:
            after = after._replace(breaches=after.breaches - 1)
        note = " (A3 broken: no search will show it in time)" if breach else ""
        version = world.rows[request.row].version
        kind = world.rows[request.row].kind.value
        if reply is Outcome.X:
            text = f"the remote carries out {kind} v{version}{note}"
        else:
            text = f"the remote refuses {kind} v{version}: its condition does not hold"
        out.append(Handled(text, after, _answered(request, reply, thing)))
        if world.unavailable and reply is Outcome.X and not breach:
            spent = after._replace(unavailable=after.unavailable - 1)
            out.append(
                Handled(f"{text} and answers 503", spent, _answered(request, Outcome.UNAVAILABLE))
            )
    return out


def handle(scenario: Scenario, rules: Rules, world: World, request: Request) -> list[Handled]:
    """Return everything the remote may do with a request it has, or will have, in hand."""
    if request.step is Step.EXECUTING:
        return _done(scenario, world, request)
    if request.step is not Step.TRANSIT:
        return []
    out = []
    version = world.rows[request.row].version
    if world.refusals:
        spent = world._replace(refusals=world.refusals - 1)
        for reply, word in ((Outcome.R, "for good"), (Outcome.T, "for now")):
            text = f"the remote refuses v{version} {word}, without effect"
            out.append(Handled(text, spent, _answered(request, reply)))
    if scenario.capability not in KEYED or not rules.key_stays:
        return out + _done(scenario, world, request)
    entry = world.ledger[request.row]
    if entry.key is KeyRecord.DONE and world.rows[request.row].key:
        text = f"the remote knows the key of v{version} and gives the first answer again"
        return [*out, Handled(text, world, _answered(request, Outcome.X, entry.thing))]
    if entry.key is KeyRecord.RUNNING and scenario.key_atomic:
        text = f"the remote answers 409, still working on the key of v{version}"
        return [*out, Handled(text, world, _answered(request, Outcome.K))]
    if not scenario.slow_remote:
        return out + _done(scenario, world, request)
    begun = _ledger(world, request.row, entry._replace(key=KeyRecord.RUNNING))
    text = f"the remote begins to work on v{version}"
    return [*out, Handled(text, begun, request._replace(step=Step.EXECUTING))]


def look(scenario: Scenario, world: World, index: int) -> tuple[Outcome, int]:
    """Return what a complete look for one row shows now, and the object it names."""
    row = world.rows[index]
    if scenario.capability in {Capability.CONDITIONAL, Capability.FULL_STATE}:
        return _read_by_id(scenario, world, index)
    if row.kind is Kind.CREATE:  # the reference names the entity, not the version (§7)
        shown = [
            i
            for i, thing in enumerate(world.things)
            if thing.maker >= 0
            and (world.ledger[thing.maker].lag == 0 or world.rows[thing.maker].evidence)
        ]
        if not shown:
            return Outcome.ABSENT, -1
        same = len(shown) == 1 and world.things[shown[0]].version == row.version
        return (Outcome.MATCH, shown[0]) if same else (Outcome.OTHER, -1)
    entry = world.ledger[index]
    if entry.effects and (entry.lag == 0 or row.evidence):
        return Outcome.MATCH, world.mapping
    return Outcome.ABSENT, -1


def _read_by_id(scenario: Scenario, world: World, index: int) -> tuple[Outcome, int]:
    row = world.rows[index]
    alive = next((i for i, thing in enumerate(world.things) if thing.alive), -1)
    if row.kind is Kind.DELETE:
        return (Outcome.ABSENT, alive) if alive >= 0 else (Outcome.MATCH, -1)
    if row.kind is Kind.CREATE:
        if alive < 0:
            return Outcome.ABSENT, -1
        same = world.things[alive].version == row.version
        return (Outcome.MATCH, alive) if same else (Outcome.OTHER, alive)
    if world.mapping < 0 or not world.things[world.mapping].alive:
        return Outcome.OTHER, -1
    shown = world.things[world.mapping].version
    if shown == row.version:
        return Outcome.MATCH, world.mapping
    if scenario.capability is Capability.FULL_STATE or shown == row.expected:
        return Outcome.ABSENT, world.mapping
    return Outcome.OTHER, world.mapping
