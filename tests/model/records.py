"""The rows, the workers and the remote of the model. All of it is hashable and small.

Times are countdowns in ticks that stop at nought, so a search needs no horizon. A lease token is
modelled as a flag: a worker's token is the row's current one or it never will be again.
"""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """States of an operation (protocol §4), and `UNBORN` before its submit."""

    UNBORN = "unborn"
    PENDING = "pending"
    RUNNING = "running"
    SENT = "sent"
    UNCERTAIN = "uncertain"
    RETRY = "retry"
    CONFIRMED = "confirmed"
    FAILED = "failed"
    REVIEW = "review"
    DISCARDED = "discarded"

    __hash__ = str.__hash__


class Kind(StrEnum):
    """What the row asks of the remote; `PUT` until the submit has chosen (protocol §13)."""

    PUT = "put"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"

    __hash__ = str.__hash__


class Phase(StrEnum):
    """Where a worker stands in protocol §6."""

    IDLE = "idle"
    READ = "read"  # the claim has read its snapshot and has not written yet
    CLAIMED = "claimed"
    PREPARED = "prepared"
    MARKED = "marked"
    WAITING = "waiting"
    HOLDING = "holding"  # knows the outcome, has not settled
    LOOKED = "looked"

    __hash__ = str.__hash__


class Outcome(StrEnum):
    """Outcome of an attempt (protocol §2), or of a look."""

    NONE = ""
    N = "N"
    ABORTED = "N by the guard"
    T = "T"
    R = "R"
    K = "K"
    X = "X"
    U = "U"
    UNAVAILABLE = "503"
    MATCH = "match"
    OTHER = "other"
    ABSENT = "absent"

    __hash__ = str.__hash__


class Step(StrEnum):
    """How far the remote is with a request."""

    TRANSIT = "transit"
    EXECUTING = "executing"
    ANSWERED = "answered"
    LOST = "lost"

    __hash__ = str.__hash__


class KeyRecord(StrEnum):
    """What the remote remembers of an idempotency key."""

    UNKNOWN = "unknown"
    RUNNING = "running"
    DONE = "done"

    __hash__ = str.__hash__


FINAL = frozenset({State.CONFIRMED, State.DISCARDED})
RESTING = frozenset({State.CONFIRMED, State.DISCARDED, State.FAILED, State.REVIEW})
LEASED = frozenset({State.RUNNING, State.SENT})
WAITS = frozenset({State.PENDING, State.RETRY})


class Operation(NamedTuple):
    """One row of the outbox, with the columns that decide something (protocol §3)."""

    version: int
    kind: Kind
    state: State = State.UNBORN
    supersedes: int = -1  # the row this one is a new generation of
    maybe_executed: bool = False
    first_sent: bool = False
    lease: int = 0
    key: int = 0  # the remote forgets the key at nought
    quiet: int = 0  # `t_last + max_exec` is reached at nought
    hold: int = 0  # `hold_until` is reached at nought
    looks: int = 0  # complete negative looks that count
    gap: int = 0  # `index_lag` since the last of them
    sends: int = 0
    repeats: int = 0
    lapses: int = 0
    expected: int = -1  # class b: the version the write is conditional on
    examined: bool = False  # its inherited doubt has been taken up (row 22) or lifted
    inherited: bool = False  # the doubt is an earlier row's, so its own key proves nothing
    evidence: bool = False  # a stale result has named its object


class Request(NamedTuple):
    """One request on the wire or at the remote; `life` is what A3 leaves it."""

    row: int
    life: int
    step: Step = Step.TRANSIT
    reply: Outcome = Outcome.NONE
    thing: int = -1


class Worker(NamedTuple):
    """One worker's memory. Time waits for it, unless it is frozen or waits for an answer."""

    phase: Phase = Phase.IDLE
    row: int = -1
    fenced: bool = False  # its token is no longer the row's
    frozen: bool = False
    right: int = 0  # its right to send; nought = over
    margin: int = 0  # since the marker was asked for; nought = over
    deadline: int = 0  # of the exchange, `max_send`
    began_quiet: bool = False  # the look began after `t_last + max_exec`
    outcome: Outcome = Outcome.NONE
    thing: int = -1
    request: Request | tuple[()] = ()


IDLE = Worker()


class Thing(NamedTuple):
    """An object at the remote."""

    version: int
    maker: int  # the row that created it; -1: it was there before
    alive: bool = True


class Footprint(NamedTuple):
    """What the remote has done for one row: the effect ledger."""

    effects: int = 0
    lag: int = 0  # until a search shows the last effect
    key: KeyRecord = KeyRecord.UNKNOWN
    thing: int = -1


class World(NamedTuple):
    """Everything there is, between two moves."""

    rows: tuple[Operation, ...]
    workers: tuple[Worker, ...]
    strays: tuple[Request, ...]  # requests nobody waits for any more
    things: tuple[Thing, ...]
    ledger: tuple[Footprint, ...]
    mapping: int  # the entity's object as the hub knows it; -1: none
    known: int  # the version last seen there
    kills: int
    freezes: int
    drops: int
    refusals: int
    copies: int
    decisions: int
    breaches: int
    unavailable: int
    again: int = 0  # decisions "send again" that made a new generation
    excused: bool = False  # a broken A3 hid an effect the hub had no evidence of
    broken: str = ""  # an invariant about a move, not about a state

    def with_row(self, index: int, row: Operation) -> "World":
        """Return the world with one row put in place."""
        return self._replace(rows=(*self.rows[:index], row, *self.rows[index + 1 :]))

    def with_worker(self, index: int, worker: Worker) -> "World":
        """Return the world with one worker put in place."""
        return self._replace(workers=(*self.workers[:index], worker, *self.workers[index + 1 :]))

    def key_of(self) -> tuple[object, ...]:
        """Return what tells this world from others.

        Two workers can change places, and the life of a key that no request will use again, of a
        row that is closed, decides nothing.
        """
        rows = self.rows
        if any(row.key and row.state in FINAL for row in rows):
            used = {request.row for request in self.strays}
            used |= {worker.row for worker in self.workers}
            rows = tuple(
                row._replace(key=0) if row.state in FINAL and index not in used else row
                for index, row in enumerate(rows)
            )
        return (rows, tuple(sorted(self.workers)), tuple(sorted(self.strays)), *self[3:])
