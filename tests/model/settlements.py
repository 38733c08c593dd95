"""The settlements: of an attempt, of a stale result, of a look (protocol §5, §6.6, §6.7, §9)."""

from tests.model.records import (
    IDLE,
    Kind,
    Operation,
    Outcome,
    State,
    Worker,
    World,
)
from tests.model.remote import KEYED
from tests.model.rulebook import Move, Rulebook
from tests.model.rules import Capability
from tests.model.stream import (
    key_alive,
    others_busy,
    repeat_harmless,
)


class Settlements(Rulebook):
    """Rows 7 to 12 and 14 to 16."""

    def _settle(self, world: World, n: int, worker: Worker) -> Move:
        index = worker.row
        row = world.rows[index]
        outcome = worker.outcome
        name = f"worker {n}: "
        idle = world.with_worker(n, IDLE)
        held_state = State.SENT if self.rules.marker else State.RUNNING
        stale_result = worker.fenced or row.state is not held_state
        if stale_result and (self.rules.settle_by_token or row.state is not held_state):
            return self._stale_result(idle, name, index, outcome)
        broken = world.broken
        if stale_result:
            broken = broken or "I5: a stale result settled"
        row = row._replace(lapses=0)
        if outcome is Outcome.UNAVAILABLE:
            outcome = Outcome.U if self.rules.unavailable_is_unknown else Outcome.T
        match outcome:
            case Outcome.X:
                after = self._closed(row, State.CONFIRMED)
                idle = idle._replace(mapping=worker.thing, known=row.version)
            case Outcome.N:
                after = row._replace(state=State.RETRY, lease=0)
            case Outcome.T | Outcome.ABORTED:  # costs no attempt (§10, §11)
                after = row._replace(state=State.RETRY, lease=0, sends=row.sends - 1)
            case Outcome.R if not (
                row.maybe_executed and self.rules.refusal_after_doubt_is_unknown
            ):
                after = self._closed(row._replace(maybe_executed=False), State.FAILED)
            case Outcome.K if self.capability in KEYED:
                after = self._unknown(row, self.timing.max_exec)._replace(state=State.RETRY)
            case Outcome.K if self.capability is Capability.CONDITIONAL:
                after = self._unknown(row, self.timing.max_exec)
            case Outcome.K:
                after = self._closed(row._replace(maybe_executed=True), State.REVIEW)
            case Outcome.U if not self.rules.timeout_is_unknown:
                after = self._closed(row, State.FAILED)
            case _:  # U, or R after an attempt of unknown fate
                after = self._unknown(row, self.timing.max_exec)
        if not after.maybe_executed:
            after = after._replace(quiet=0)  # read in doubt only; the next marker sets it anew
        text = f"{name}settles {outcome} for v{row.version} → {after.state} (7–12)"
        after_world = self._fence(idle, index).with_row(index, after)
        return Move(text, after_world._replace(broken=broken))

    def _stale_result(self, idle: World, name: str, index: int, outcome: Outcome) -> Move:
        """§6.7: evidence; one that names an object stops a waiting repeat (23)."""
        row = idle.rows[index]
        text = f"{name}its {outcome} for v{row.version} is stale: evidence only"
        if outcome is not Outcome.X or row.state is State.CONFIRMED:
            return Move(text, idle)
        told = row._replace(evidence=True)
        if row.state is State.DISCARDED:
            told = told._replace(maybe_executed=True)
            return self._late_result_before_another(idle.with_row(index, told), text, told)
        rules = self.rules
        waiting = row.state in {State.RETRY, State.RUNNING}
        closed = row.state in {State.REVIEW, State.FAILED}
        if waiting and not rules.late_result_stops_repeat:
            return Move(text, idle.with_row(index, told))
        if closed and not rules.late_result_renews_doubt:
            return Move(text, idle.with_row(index, told))
        if waiting or closed:
            # C2: one whose marker is not set yet gives the stream back (3), any other keeps it
            for j, other in enumerate(idle.rows):
                if j != index and other.state is State.RUNNING:
                    back = self._back_to_waiting(other, 0, given_back=True)
                    back = back._replace(sends=other.sends - 1)
                    idle = self._fence(idle, j).with_row(j, back)
            if others_busy(rules, idle, index):
                return self._late_result_before_another(idle.with_row(index, told), text, told)
        if closed:
            told = told._replace(state=State.REVIEW, maybe_executed=True)
            text = f"{text}; it names an object, so v{row.version} is in doubt again"
            return Move(text, idle.with_row(index, told))
        if waiting:
            told = told._replace(
                state=State.UNCERTAIN, maybe_executed=True, lease=0, looks=0, gap=0
            )
            text = f"{text}; it names an object, so v{row.version} → uncertain (23)"
            return Move(text, self._fence(idle, index).with_row(index, told))
        if rules.late_result_stops_look and row.state is State.UNCERTAIN:
            told = told._replace(lease=0, looks=0, gap=0)
            text = f"{text}; it names an object, so a look under way counts no more (23)"
            return Move(text, self._fence(idle, index).with_row(index, told))
        return Move(text, idle.with_row(index, told))

    def _late_result_before_another(self, world: World, text: str, told: Operation) -> Move:
        """Row 23 for the create that would come after the row this result belongs to."""
        if not self.rules.late_result_stops_heir or told.kind is not Kind.CREATE:
            return Move(text, world)
        for j, heir in enumerate(world.rows):
            waiting = heir.state in {State.RETRY, State.RUNNING, State.UNCERTAIN} or (
                heir.state is State.PENDING and heir.examined
            )
            if heir.kind is Kind.CREATE and waiting:
                stopped = heir._replace(
                    state=State.UNCERTAIN,
                    maybe_executed=True,
                    inherited=True,
                    examined=True,
                    lease=0,
                    looks=0,
                    gap=0,
                )
                if self.capability in {Capability.KEY, Capability.NOTHING}:
                    stopped = stopped._replace(state=State.REVIEW)
                text = f"{text}; v{heir.version}, next in its stream, → {stopped.state} (23)"
                world = self._fence(world, j).with_row(j, stopped)
        return Move(text, world)

    # -- settle a look: rows 14 to 16, §9 --------------------------------------------------------

    def _settle_look(self, world: World, n: int, worker: Worker) -> Move:
        index = worker.row
        row = world.rows[index]._replace(lease=0, lapses=0)
        idle = world.with_worker(n, IDLE)
        if worker.fenced or world.rows[index].state is not State.UNCERTAIN:
            return Move(f"worker {n}: its look for v{row.version} came too late", idle)
        match worker.outcome:
            case Outcome.MATCH if (
                row.kind is Kind.DELETE
                and row.inherited
                and not worker.began_quiet
                and self.rules.inherited_delete_needs_absence
            ):
                after, text = row, "gone, which may only mean: not there yet"
            case Outcome.MATCH:
                after = self._closed(row, State.CONFIRMED)
                if row.kind is not Kind.DELETE:
                    idle = idle._replace(mapping=worker.thing)
                idle = idle._replace(known=row.version)
                text = f"found → {after.state} (14)"
            case Outcome.OTHER:
                newer = worker.thing >= 0 and world.things[worker.thing].version > row.version
                state = State.DISCARDED if newer else State.REVIEW
                after = self._closed(row, state) if newer else row._replace(state=state)
                text = f"found something else → {after.state} (14, 16)"
            case _:
                after = self._absent(row, began_quiet=worker.began_quiet)
                text = f"not there → {after.state} (15, 16)"
        return Move(f"worker {n}: v{row.version} {text}", idle.with_row(index, after))

    def _absent(self, row: Operation, *, began_quiet: bool) -> Operation:
        """Row 15 and §9.4."""
        blind = row.inherited and self.rules.inherited_doubt_needs_absence
        if not blind and repeat_harmless(self.scenario, self.rules, row):
            return row._replace(state=State.RETRY)
        if self.capability in KEYED and not blind and key_alive(self.scenario, row):
            return row  # the key is not atomic: the first copy may still be running
        if not began_quiet and self.rules.absence_waits:
            return row
        if self.timing.index_lag and self.rules.absence_waits:
            if row.looks == 0:
                return row._replace(looks=1, gap=self.timing.index_lag)
            if row.gap:
                return row
        if row.repeats >= 1:
            return row._replace(state=State.REVIEW, looks=0)
        return row._replace(
            state=State.RETRY, maybe_executed=False, inherited=False, repeats=1, looks=0
        )
