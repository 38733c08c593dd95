"""The moves of the protocol: submit, worker, sweep, remote, network, person, and time.

Each move cites its row of protocol §5 or its section. Time waits for a worker that has a step to
take, unless it is frozen (SIGSTOP, for any length, at any point); a request may stay on its way or
in the remote's queue for as long as A3 allows, also after the worker has given it up.
"""

from collections.abc import Iterator

from tests.model.person import PersonMoves
from tests.model.records import (
    IDLE,
    LEASED,
    WAITS,
    Footprint,
    KeyRecord,
    Kind,
    Operation,
    Phase,
    Request,
    State,
    Step,
    Thing,
    Worker,
    World,
)
from tests.model.remote import KEYED
from tests.model.rulebook import Move
from tests.model.rules import Scenario
from tests.model.stream import (
    can_look,
    first_in_line,
    heir_of,
    key_alive,
    others_busy,
    stale,
)
from tests.model.worker import WorkerMoves


def start(scenario: Scenario) -> World:
    """Return the world before the first submit."""
    kinds = {"put": Kind.PUT, "delete": Kind.DELETE}
    rows = tuple(Operation(n + 1, kinds[intent]) for n, intent in enumerate(scenario.intents))
    return World(
        rows=rows,
        workers=(IDLE,) * scenario.workers,
        strays=(),
        things=(Thing(0, -1),) if scenario.exists else (),
        ledger=(Footprint(),) * len(rows),
        mapping=0 if scenario.exists else -1,
        known=0 if scenario.exists else -1,
        kills=scenario.kills,
        freezes=scenario.freezes,
        drops=scenario.drops,
        refusals=scenario.refusals,
        copies=scenario.copies,
        decisions=scenario.decisions,
        breaches=scenario.breaches,
        unavailable=scenario.unavailable,
    )


class Machine(WorkerMoves, PersonMoves):
    """The protocol for one scenario under one set of rules."""

    def moves(self, world: World) -> Iterator[Move]:
        """Yield every move that is possible now."""
        for index, row in enumerate(world.rows):
            if row.state is State.UNBORN:
                yield from self._submit(world, index)
                continue
            yield from self._sweep(world, index, row)
            if world.decisions:
                yield from self._decide(world, index, row)
        idle_seen = False
        for n, worker in enumerate(world.workers):
            if worker.phase is Phase.IDLE:
                if idle_seen:
                    continue  # one idle worker is as good as another
                idle_seen = True
            yield from self._work(world, n, worker)
            if worker.phase is not Phase.IDLE:
                yield from self._interrupt(world, n, worker)
        yield from self._strays(world)
        if (after := self._tick(world)) is not None:
            yield Move("time passes", after)

    # -- submit: row 1, §7, §13 ------------------------------------------------------------------

    def _submit(self, world: World, index: int) -> Iterator[Move]:
        row = world.rows[index]
        earlier = world.rows[:index]
        late = any(other.state is not State.UNBORN for other in world.rows[index + 1 :])
        if any(other.state is State.UNBORN for other in earlier) and not self.scenario.late_commit:
            return
        open_create = any(
            other.kind is Kind.CREATE
            and (
                other.state in WAITS
                or other.state in LEASED
                or other.state is State.UNCERTAIN
                or (other.state is State.REVIEW and other.maybe_executed)
            )
            for other in world.rows
        )
        kinds = {row.kind}
        if row.kind is Kind.PUT:
            kinds = {Kind.CREATE if world.mapping < 0 and not open_create else Kind.UPDATE}
            if late and not self.scenario.exists:
                kinds.add(Kind.CREATE)  # chosen before the other row could be seen
        for kind in kinds:
            text = f"v{row.version} is submitted as {kind} (1)"
            if stale(world, index):
                gone = self._closed(row._replace(kind=kind), State.DISCARDED)
                yield Move(f"{text}, stale on arrival", world.with_row(index, gone))
                continue
            after = world.with_row(index, row._replace(kind=kind, state=State.PENDING))
            yield Move(text, after)
            for j, other in enumerate(earlier):
                if other.kind is kind and other.state in WAITS and not other.maybe_executed:
                    coalesced = after.with_row(j, self._closed(other, State.DISCARDED))
                    yield Move(f"{text} and supersedes v{other.version} (18)", coalesced)

    # -- the sweep: rows 3, 6, 9, 10, 12, 19, 22, 23 ---------------------------------------------

    def _sweep(self, world: World, index: int, row: Operation) -> Iterator[Move]:
        name = f"v{row.version}"
        if row.state in LEASED and row.lease == 0:
            lapses = row.lapses + 1
            fenced = self._fence(world, index)
            if row.state is State.RUNNING:
                after = self._back_to_waiting(row, lapses, given_back=False)
                text = f"sweep: the lease of {name} lapsed while running → {after.state} (3, 6)"
            elif not self.rules.lapsed_sent_in_doubt:
                after = row._replace(state=State.PENDING, lease=0, lapses=lapses)
                text = f"sweep: the lease of {name} lapsed while sent → {after.state}"
            else:
                after = self._unknown(row, row.quiet)._replace(lapses=lapses)
                text = f"sweep: the lease of {name} lapsed while sent → {after.state} (9, 10, 12)"
            yield Move(text, fenced.with_row(index, after))
        elif row.sends >= self.scenario.max_sends and (
            row.state is State.RETRY
            or (row.state is State.PENDING and self.rules.pending_can_exhaust)
        ):
            if self.rules.exhausted_to_review:
                after = row._replace(state=State.REVIEW)
            else:
                after = self._closed(row._replace(maybe_executed=False), State.FAILED)
            yield Move(
                f"sweep: attempts of {name} used up → {after.state} (19)",
                world.with_row(index, after),
            )
        elif row.state is State.RETRY and row.maybe_executed and self.capability in KEYED:
            if (
                key_alive(self.scenario, row) and not row.inherited
            ) or not self.rules.key_life_checked:
                return
            state = State.UNCERTAIN if can_look(self.scenario, row) else State.REVIEW
            after = row._replace(state=state, looks=0, gap=0)
            yield Move(
                f"sweep: the key of {name} is dead → {state} (23, 19)", world.with_row(index, after)
            )
        elif (
            row.state in WAITS
            and not row.maybe_executed
            and self.rules.stale_leaves_the_queue
            and stale(world, index)
        ):
            gone = self._closed(row, State.DISCARDED)
            yield Move(f"{name} is seen to be stale at the claim (18)", world.with_row(index, gone))
        elif not row.maybe_executed and (
            row.state is State.PENDING or (row.state is State.RETRY and self.rules.retry_inherits)
        ):
            heir = heir_of(self.rules, world, index)
            if heir is None or others_busy(self.rules, world, index):
                return
            if not first_in_line(self.rules, world, index):
                return
            quiet = heir.quiet if self.rules.inherited_doubt_keeps_quiet else 0
            doubted = row._replace(inherited=True, examined=True, key=self.timing.key_ttl)
            after = self._unknown(doubted, quiet)
            text = f"sweep: {name} inherits the doubt of v{heir.version} → {after.state} (22)"
            yield Move(text, world.with_row(index, after))

    # -- time ------------------------------------------------------------------------------------

    def _tick(self, world: World) -> World | None:
        """Let one tick pass; None when nothing is running down, or somebody has a step to take."""
        if any(self._acts_now(worker) for worker in world.workers):
            return None
        rows = tuple(self._tick_row(row) for row in world.rows)
        lost: list[int] = []
        workers = tuple(self._tick_worker(worker, lost) for worker in world.workers)
        strays = []
        for request in world.strays:
            if request.life > 1:
                strays.append(request._replace(life=request.life - 1))
            else:
                if request.step is Step.EXECUTING:
                    lost.append(request.row)
        ledger = tuple(
            entry._replace(lag=entry.lag - 1) if entry.lag > 0 else entry for entry in world.ledger
        )
        for row in lost:  # the remote gave the request up, and its lock on the key with it
            if ledger[row].key is KeyRecord.RUNNING:
                freed = ledger[row]._replace(key=KeyRecord.UNKNOWN)
                ledger = (*ledger[:row], freed, *ledger[row + 1 :])
        after = world._replace(rows=rows, workers=workers, strays=tuple(strays), ledger=ledger)
        return None if after == world else after

    @staticmethod
    def _acts_now(worker: Worker) -> bool:
        if worker.frozen or worker.phase is Phase.IDLE:
            return False
        request = worker.request
        if worker.phase is Phase.WAITING and isinstance(request, Request):
            return worker.deadline == 0 or request.step in {Step.ANSWERED, Step.LOST}
        return True

    @staticmethod
    def _tick_row(row: Operation) -> Operation:
        if not (row.lease or row.quiet or row.hold or row.gap or row.key):
            return row
        return row._replace(
            lease=max(0, row.lease - 1),
            quiet=max(0, row.quiet - 1),
            hold=max(0, row.hold - 1),
            gap=max(0, row.gap - 1),
            key=max(0, row.key - 1),
        )

    @staticmethod
    def _tick_worker(worker: Worker, lost: list[int]) -> Worker:
        request = worker.request
        if isinstance(request, Request) and request.step in {Step.TRANSIT, Step.EXECUTING}:
            life = request.life - 1
            if life <= 0:
                if request.step is Step.EXECUTING:
                    lost.append(request.row)
                request = Request(request.row, 0, Step.LOST)
            else:
                request = request._replace(life=life)
            return worker._replace(request=request, deadline=max(0, worker.deadline - 1))
        if worker.right or worker.margin:
            return worker._replace(right=max(0, worker.right - 1), margin=max(0, worker.margin - 1))
        return worker
