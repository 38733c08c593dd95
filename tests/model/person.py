"""The decisions of a person: rows 18, 20, 21 and 24, and protocol §16."""

from collections.abc import Iterator

from tests.model.records import (
    WAITS,
    Footprint,
    Operation,
    State,
    World,
)
from tests.model.rulebook import Move, Rulebook
from tests.model.rules import Capability
from tests.model.stream import (
    can_look,
    repeat_harmless,
    stale,
)

MAX_ROWS = 3


class PersonMoves(Rulebook):
    """Each decision of the scenario's budget may be taken at any moment."""

    def _decide(self, world: World, index: int, row: Operation) -> Iterator[Move]:
        spent = world._replace(decisions=world.decisions - 1)
        name = f"a person: v{row.version}"
        doubt = row.maybe_executed
        if row.state in WAITS and not doubt:
            gone = self._closed(row, State.DISCARDED)
            yield Move(f"{name} withdrawn (18)", spent.with_row(index, gone), fault=True)
        elif row.state is State.FAILED and not stale(world, index):
            again = row._replace(state=State.RETRY, sends=0)
            yield Move(f"{name} cause corrected (20)", spent.with_row(index, again), fault=True)
        elif row.state is State.UNCERTAIN or (row.state is State.RETRY and doubt):
            taken = self._fence(spent, index).with_row(
                index, row._replace(state=State.REVIEW, lease=0)
            )
            yield Move(f"{name} taken out of the machine's hands (24)", taken, fault=True)
        elif row.state is State.REVIEW:
            yield from self._decide_review(spent, index, row, name)

    def _decide_review(self, spent: World, index: int, row: Operation, name: str) -> Iterator[Move]:
        gone = self._closed(row, State.DISCARDED)
        yield Move(f"{name} withdrawn (21)", spent.with_row(index, gone), fault=True)
        if row.maybe_executed and can_look(self.scenario, row):
            looked = row._replace(state=State.UNCERTAIN, looks=0, gap=0, repeats=0)
            yield Move(f"{name} look again (21)", spent.with_row(index, looked), fault=True)
        lineage = {index, row.supersedes}
        shown = [j for j in sorted(lineage) if j >= 0 and spent.ledger[j].effects]
        if row.maybe_executed and shown:
            thing = spent.ledger[shown[-1]].thing
            linked = spent._replace(mapping=thing, known=row.version)
            done = linked.with_row(index, self._closed(row, State.CONFIRMED))
            yield Move(f"{name} it happened (21)", done, fault=True)
        if stale(spent, index):
            return
        if not row.maybe_executed or (
            self.capability not in {Capability.REFERENCE, Capability.NOTHING}
            and repeat_harmless(self.scenario, self.rules, row._replace(quiet=0))
        ):
            again = row._replace(state=State.RETRY, sends=0)
            yield Move(
                f"{name} send again, same key (21)", spent.with_row(index, again), fault=True
            )
        elif len(spent.rows) < MAX_ROWS:
            twin = Operation(row.version, row.kind, State.PENDING, index, examined=True)
            rows = (*spent.with_row(index, gone).rows, twin)
            after = spent._replace(
                rows=rows, ledger=(*spent.ledger, Footprint()), again=spent.again + 1
            )
            yield Move(f"{name} send again as a new generation (21)", after, fault=True)
