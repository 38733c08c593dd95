"""The moves of a worker: one attempt, or one look (protocol §6 and §9)."""

from collections.abc import Iterator

from tests.model.records import (
    IDLE,
    Kind,
    Operation,
    Outcome,
    Phase,
    Request,
    State,
    Step,
    Worker,
    World,
)
from tests.model.remote import KEYED, handle, look
from tests.model.rulebook import Move
from tests.model.rules import Capability
from tests.model.settlements import Settlements
from tests.model.stream import (
    can_look,
    claimable_by_stream,
    claimable_itself,
    heir_of,
    held,
    others_busy,
    repeat_harmless,
    stale,
)


class WorkerMoves(Settlements):
    """Claim, prepare, mark, guard, send, wait."""

    def _work(self, world: World, n: int, worker: Worker) -> Iterator[Move]:
        if worker.frozen and worker.phase is not Phase.WAITING:
            worker = worker._replace(frozen=False)  # it resumes with the step it takes
        match worker.phase:
            case Phase.IDLE:
                yield from self._claim(world, n)
            case Phase.READ:
                yield self._claim_write(world, n, worker)
            case Phase.CLAIMED:
                yield from self._prepare(world, n, worker)
            case Phase.PREPARED:
                yield self._mark(world, n, worker)
            case Phase.MARKED:
                yield from self._send(world, n, worker)
            case Phase.WAITING:
                yield from self._wait(world, n, worker)
            case Phase.HOLDING:
                yield self._settle(world, n, worker)
            case Phase.LOOKED:
                yield self._settle_look(world, n, worker)

    def _claim(self, world: World, n: int) -> Iterator[Move]:
        """Rows 2 and 13."""
        for index, row in enumerate(world.rows):
            name = f"worker {n}: "
            if row.state is State.UNCERTAIN and row.lease == 0 and can_look(self.scenario, row):
                yield self._look(world, n, index)
                continue
            if not claimable_itself(self.scenario, self.rules, row):
                continue
            if not claimable_by_stream(self.scenario, self.rules, world, index):
                continue
            if len(world.rows) == 1:
                yield Move(f"{name}claims v{row.version} (2)", self._claimed(world, n, index))
            elif not any(w.phase is Phase.READ and w.row == index for w in world.workers):
                reader = Worker(Phase.READ, index)
                text = f"{name}begins to claim v{row.version}: its snapshot is taken (2)"
                yield Move(text, world.with_worker(n, reader))

    def _look(self, world: World, n: int, index: int) -> Move:
        """Row 13. What is seen was there as the look began: a later view only knows more."""
        row = world.rows[index]
        name = f"worker {n}: "
        if any(w.row == index and w.phase is Phase.LOOKED for w in world.workers):
            row = row._replace(lapses=row.lapses + 1)
            if row.lapses >= self.scenario.max_lapses:
                given_up = self._fence(world, index).with_row(
                    index, row._replace(state=State.REVIEW)
                )
                return Move(f"{name}too many looks for v{row.version} lapsed (16)", given_up)
        outcome, thing = look(self.scenario, world, index)
        looker = Worker(
            Phase.LOOKED, index, began_quiet=row.quiet == 0, outcome=outcome, thing=thing
        )
        leased = row._replace(lease=self.timing.lease)
        after = self._fence(world, index).with_row(index, leased).with_worker(n, looker)
        return Move(f"{name}looks for v{row.version} and sees: {outcome} (13)", after)

    def _claim_write(self, world: World, n: int, worker: Worker) -> Move:
        row = world.rows[worker.row]
        mine = claimable_itself(self.scenario, self.rules, row)
        if not mine or others_busy(self.rules, world, worker.row):  # the row itself, and C2
            return Move(f"worker {n}: the claim hits no row", world.with_worker(n, IDLE))
        return Move(f"worker {n}: claims v{row.version} (2)", self._claimed(world, n, worker.row))

    def _claimed(self, world: World, n: int, index: int) -> World:
        row = world.rows[index]
        leased = row._replace(state=State.RUNNING, lease=self.timing.lease, sends=row.sends + 1)
        claimed = Worker(Phase.CLAIMED, index, right=self.timing.right_to_send + 1)
        return self._fence(world, index).with_row(index, leased).with_worker(n, claimed)

    def _prepare(self, world: World, n: int, worker: Worker) -> Iterator[Move]:
        """§6.2, and the replacements of §13."""
        index = worker.row
        row = world.rows[index]
        name = f"worker {n}: "
        idle = world.with_worker(n, IDLE)
        if worker.fenced or row.state is not State.RUNNING:
            if self.rules.marker:
                yield Move(f"{name}resumes and finds v{row.version} no longer its own", idle)
                return
        elif not row.maybe_executed:
            if row.kind is Kind.CREATE and world.mapping >= 0:
                other = row._replace(
                    kind=Kind.UPDATE, state=State.PENDING, lease=0, sends=row.sends - 1
                )
                text = f"{name}v{row.version} finds a mapping: an update takes its place (5)"
                yield Move(text, self._fence(idle, index).with_row(index, other))
                return
            if row.kind is Kind.UPDATE and world.mapping < 0:
                other = row._replace(
                    kind=Kind.CREATE, state=State.PENDING, lease=0, sends=row.sends - 1
                )
                text = f"{name}v{row.version} finds no mapping: a create takes its place (5)"
                yield Move(text, self._fence(idle, index).with_row(index, other))
                return
            if row.kind is Kind.DELETE and world.mapping < 0 and not row.examined:
                if heir_of(self.rules, world, index) is None:
                    gone = self._closed(row, State.DISCARDED)
                    text = f"{name}v{row.version} has nothing to delete (5)"
                    yield Move(text, self._fence(idle, index).with_row(index, gone))
                    return
        if row.sends > 1 and can_look(self.scenario, row) and row.state is State.RUNNING:
            outcome, _ = look(self.scenario, world, index)
            if outcome is Outcome.MATCH:
                found = row._replace(
                    state=State.UNCERTAIN, maybe_executed=True, lease=0, looks=0, gap=0
                )
                text = f"{name}looks once more and finds v{row.version} (23)"
                yield Move(text, self._fence(idle, index).with_row(index, found))
                return
            ready = worker._replace(phase=Phase.PREPARED)
            text = f"{name}looks once more and does not find v{row.version} (§6.2)"
            yield Move(text, world.with_worker(n, ready))
            return
        yield self._mark(world, n, worker)

    @staticmethod
    def _replaced(row: Operation, kind: Kind) -> Operation:
        """§13: discarded as superseded, and a row of the same version takes its place."""
        return row._replace(kind=kind, state=State.PENDING, lease=0, sends=row.sends - 1)

    def _mark(self, world: World, n: int, worker: Worker) -> Move:
        """Row 4; what it refuses is 3 or 5."""
        index = worker.row
        row = world.rows[index]
        timing = self.timing
        name = f"worker {n}: "
        marked = worker._replace(phase=Phase.MARKED, margin=timing.margin + 1)
        if not self.rules.marker:
            if self.capability in KEYED and not row.key:
                world = world.with_row(index, row._replace(key=timing.key_ttl))
            return Move(
                f"{name}sends v{row.version} without a marker", world.with_worker(n, marked)
            )
        idle = world.with_worker(n, IDLE)
        if worker.fenced or row.state is not State.RUNNING:
            return Move(f"{name}the marker hits no row: v{row.version} is no longer its own", idle)
        if row.lease < timing.max_send + timing.margin:
            return self._give_back(idle, n, index, "too late for the marker")
        if self.rules.stream_reread_at_marker:
            if stale(world, index):
                state = State.REVIEW if row.maybe_executed else State.DISCARDED
                gone = self._closed(row, state)
                text = f"{name}v{row.version} is stale at the marker → {state} (5)"
                return Move(text, self._fence(idle, index).with_row(index, gone))
            if held(self.scenario, self.rules, world, index):
                return self._give_back(idle, n, index, "held at the marker")
            if heir_of(self.rules, world, index) is not None:
                return self._give_back(idle, n, index, "inherits doubt, seen at the marker")
        if (
            row.maybe_executed
            and self.capability in KEYED
            and self.rules.key_life_at_marker
            and not repeat_harmless(self.scenario, self.rules, row)
        ):
            return self._give_back(idle, n, index, "its key has died meanwhile")
        margin = timing.margin if self.rules.margin_after_marker else 0
        quiet = max(row.quiet, margin + timing.max_send + timing.max_exec)
        sent = row._replace(
            state=State.SENT,
            first_sent=True,
            key=row.key if row.first_sent or row.inherited else timing.key_ttl,
            quiet=quiet,
            hold=quiet if self._holds_from_the_marker() else row.hold,
            expected=row.expected if row.first_sent else world.known,
        )
        if self.capability is not Capability.CONDITIONAL:
            sent = sent._replace(expected=-1)
        if self.capability not in KEYED:
            sent = sent._replace(key=0)
        after = world.with_row(index, sent).with_worker(n, marked)
        if world.breaches < self.scenario.breaches and not after.excused:
            hidden = any(
                entry.effects and entry.lag and not told.evidence
                for entry, told in zip(world.ledger, world.rows, strict=True)
            )
            after = after._replace(excused=hidden)
        return Move(f"{name}marks v{row.version} as sent (4)", after)

    def _give_back(self, idle: World, n: int, index: int, why: str) -> Move:
        row = idle.rows[index]
        back = self._back_to_waiting(row, 0, given_back=True)._replace(sends=row.sends - 1)
        text = f"worker {n}: gives v{row.version} back, {why} (3)"
        return Move(text, self._fence(idle, index).with_row(index, back))

    def _send(self, world: World, n: int, worker: Worker) -> Iterator[Move]:
        """§6.4: the guard and the first byte are one step (A4)."""
        timing = self.timing
        version = world.rows[worker.row].version
        within = worker.right > 0 and (worker.margin > 0 or not self.rules.margin_after_marker)
        if within or not self.rules.guard:
            request = Request(worker.row, timing.max_send + timing.max_exec)
            after = Worker(
                Phase.WAITING, worker.row, worker.fenced, deadline=timing.max_send, request=request
            )
            yield Move(f"worker {n}: sends v{version}", world.with_worker(n, after))
            if world.refusals:
                spent = world._replace(refusals=world.refusals - 1)
                kept = Worker(Phase.HOLDING, worker.row, worker.fenced, outcome=Outcome.N)
                text = f"worker {n}: no connection for v{version}, nothing left"
                yield Move(text, spent.with_worker(n, kept), fault=True)
            return
        after = Worker(Phase.HOLDING, worker.row, worker.fenced, outcome=Outcome.ABORTED)
        if worker.fenced and self._hits_nothing(after):
            after = IDLE
        yield Move(
            f"worker {n}: the guard aborts v{version}, nothing left", world.with_worker(n, after)
        )

    def _wait(self, world: World, n: int, worker: Worker) -> Iterator[Move]:
        request = worker.request
        if not isinstance(request, Request):
            return
        version = world.rows[request.row].version
        holding = Worker(Phase.HOLDING, worker.row, worker.fenced)
        if request.step is Step.ANSWERED:
            told = holding._replace(outcome=request.reply, thing=request.thing)
            if worker.fenced and self._hits_nothing(told):
                told = IDLE
            text = f"worker {n}: reads the answer {request.reply} for v{version}"
            yield Move(text, world.with_worker(n, told))
        unknown = holding._replace(outcome=Outcome.U)
        if worker.fenced and self._hits_nothing(unknown):
            unknown = IDLE
        if request.step is Step.LOST:
            yield Move(f"worker {n}: no answer for v{version}", world.with_worker(n, unknown))
            return
        late = worker.deadline == 0
        if world.drops or late:
            after = world.with_worker(n, unknown)
            if request.step is not Step.ANSWERED:
                left = request._replace(life=min(request.life, self.timing.max_exec))
                after = after._replace(strays=(*after.strays, left))
            if late:
                text = f"worker {n}: max_send is over and v{version} unanswered"
            else:
                after = after._replace(drops=world.drops - 1)
                text = f"worker {n}: the connection breaks, fate of v{version} unknown"
            yield Move(text, after, fault=not late)
        if world.copies and request.step is Step.TRANSIT:
            # the copied bytes have left, so A3 gives the copy `max_exec` from here
            copy = request._replace(life=min(request.life, self.timing.max_exec))
            after = world._replace(copies=world.copies - 1, strays=(*world.strays, copy))
            yield Move(f"the network repeats the request for v{version}", after, fault=True)
        for text, after, handled in handle(self.scenario, self.rules, world, request):
            fault = (
                handled.reply in {Outcome.R, Outcome.T, Outcome.UNAVAILABLE}
                or after.breaches < world.breaches
            )
            yield Move(text, after.with_worker(n, worker._replace(request=handled)), fault)

    def _strays(self, world: World) -> Iterator[Move]:
        for at, request in enumerate(world.strays):
            if request in world.strays[:at]:
                continue
            rest = (*world.strays[:at], *world.strays[at + 1 :])
            for text, after, handled in handle(self.scenario, self.rules, world, request):
                if handled.reply in {Outcome.R, Outcome.T, Outcome.UNAVAILABLE}:
                    continue  # nobody hears it
                strays = (*rest, handled) if handled.step is Step.EXECUTING else rest
                fault = after.breaches < world.breaches
                yield Move(f"a late copy: {text}", after._replace(strays=strays), fault)

    def _interrupt(self, world: World, n: int, worker: Worker) -> Iterator[Move]:
        name = f"({worker.phase}, v{world.rows[worker.row].version})"
        if world.freezes and not worker.frozen:
            after = world._replace(freezes=world.freezes - 1)
            frozen = after.with_worker(n, worker._replace(frozen=True))
            yield Move(f"worker {n} freezes {name}", frozen, fault=True)
        if world.kills:
            after = world._replace(kills=world.kills - 1).with_worker(n, IDLE)
            request = worker.request
            if isinstance(request, Request) and request.step in {Step.TRANSIT, Step.EXECUTING}:
                after = after._replace(strays=(*after.strays, request))
            yield Move(f"worker {n} is killed {name}", after, fault=True)
