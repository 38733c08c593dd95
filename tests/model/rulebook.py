"""What every mover shares: the moves themselves, doubt, closing, and the token."""

from typing import NamedTuple

from tests.model.records import (
    IDLE,
    Kind,
    Operation,
    Outcome,
    Phase,
    State,
    Worker,
    World,
)
from tests.model.rules import Capability, Rules, Scenario
from tests.model.stream import (
    key_alive,
)


class Move(NamedTuple):
    """One step of the world. `fault` marks what need not happen once the faults have stopped."""

    text: str
    world: World
    fault: bool = False


class Rulebook:
    """The consequences that several rows of protocol §5 have in common."""

    def __init__(self, scenario: Scenario, rules: Rules) -> None:
        self.scenario = scenario
        self.rules = rules
        self.timing = scenario.timing
        self.capability = scenario.capability

    def _back_to_waiting(self, row: Operation, lapses: int, *, given_back: bool) -> Operation:
        """Row 3, and 6 for the poison limit."""
        doubt = row.maybe_executed and (given_back or self.rules.lapsed_repeat_keeps_doubt)
        state = State.RETRY if doubt else State.PENDING
        if lapses >= self.scenario.max_lapses:
            state = State.REVIEW
        return row._replace(state=state, maybe_executed=doubt, lease=0, lapses=lapses)

    def _unknown(self, row: Operation, quiet: int) -> Operation:
        """Rows 9, 10, 12: what becomes of a row whose attempt has an unknown outcome."""
        match self.capability:
            case Capability.NOTHING:
                state = State.REVIEW
            case Capability.KEY:
                alive = key_alive(self.scenario, row) and not row.inherited
                state = State.RETRY if alive else State.REVIEW
            case _:
                state = State.UNCERTAIN
        hold = row.hold
        if self._late_copy_harms(row):
            hold = quiet
        return row._replace(
            state=state, maybe_executed=True, lease=0, quiet=quiet, hold=hold, looks=0, gap=0
        )

    def _late_copy_harms(self, row: Operation) -> bool:
        """§12: b′, and create-if-absent (before a delete)."""
        if self.capability is Capability.FULL_STATE:
            return True
        return self.capability is Capability.CONDITIONAL and row.kind is not Kind.UPDATE

    def _holds_from_the_marker(self) -> bool:
        """F43: where the network repeats requests, even an answered one may have a late copy."""
        repeats = self.scenario.copies > 0 and self.capability is Capability.FULL_STATE
        return repeats and self.rules.hold_from_the_marker

    def _closed(self, row: Operation, state: State) -> Operation:
        """Forget what no rule reads any more."""
        doubt = row.maybe_executed and state is not State.CONFIRMED
        hold = row.hold
        if doubt and state is State.DISCARDED and self.rules.discarded_doubt_holds:
            if not (self.capability is Capability.CONDITIONAL and row.kind is Kind.UPDATE):
                hold = row.quiet
        return Operation(
            row.version,
            row.kind,
            state,
            row.supersedes,
            maybe_executed=doubt,
            first_sent=row.first_sent,
            hold=hold,
            quiet=row.quiet if doubt else 0,
            key=row.key,
            examined=row.examined,
            evidence=row.evidence,
        )

    def _fence(self, world: World, index: int) -> World:
        """The token rises: whoever holds an older one no longer counts."""
        workers = []
        for worker in world.workers:
            if worker.row == index and worker.phase is not Phase.READ and not worker.fenced:
                worker = worker._replace(fenced=True)
                if self._hits_nothing(worker):
                    worker = IDLE
            workers.append(worker)
        return world._replace(workers=tuple(workers))

    def _hits_nothing(self, worker: Worker) -> bool:
        """Say whether a fenced worker can do no more than find that out (F15): it is let go here.

        That halves the search. One that may still send, or holds a result that is evidence, stays.
        """
        match worker.phase:
            case Phase.LOOKED:
                return True
            case Phase.CLAIMED | Phase.PREPARED:
                return self.rules.marker
            case Phase.HOLDING:
                return self.rules.settle_by_token and worker.outcome is not Outcome.X
            case _:
                return False
