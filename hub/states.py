"""States of an operation, classes of error, and the table of allowed moves, as data.

Rules row: nothing here reads a clock, a database or a network. The numbers in `MOVES` are the rows
of protocol §5; `tests/hub/test_states.py` holds the table and the audit of every test run to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where an operation stands (protocol §4)."""

    PENDING = "pending"
    RUNNING = "running"
    SENT = "sent"
    UNCERTAIN = "uncertain"
    ACCEPTED = "accepted"
    RETRY = "retry"
    CONFIRMED = "confirmed"
    FAILED = "failed"
    REVIEW = "review"
    DISCARDED = "discarded"


MOVING = frozenset(
    {State.PENDING, State.RUNNING, State.SENT, State.UNCERTAIN, State.ACCEPTED, State.RETRY}
)
RESTING = frozenset({State.FAILED, State.REVIEW})
FINAL = frozenset({State.CONFIRMED, State.DISCARDED})
CLAIMABLE = frozenset({State.PENDING, State.RETRY})
LEASABLE = frozenset({State.RUNNING, State.SENT, State.UNCERTAIN, State.ACCEPTED})
"""States in which a lease may be held (C3); in `running` and `sent` one always is."""


class Actor(StrEnum):
    """Who may make a move. Nobody else changes a state: no task runner, webhook or saved form."""

    SUBMIT = "submit"
    WORKER = "worker"
    SWEEP = "sweep"
    PERSON = "person"


class Purpose(StrEnum):
    """What an attempt is for."""

    SEND = "send"
    CONSULT = "consult"
    POLL = "poll"


class Outcome(StrEnum):
    """What an attempt came to, in the words of protocol §2."""

    NOTHING_LEFT = "N"
    REFUSED_FOR_NOW = "T"
    REFUSED = "R"
    DENIED = "D"
    CONFLICT = "K"
    DONE = "X"
    ACCEPTED = "A"
    UNKNOWN = "U"
    LOOKED = "L"
    """The attempt was a look or a poll; what it saw stands in its verdict."""
    GIVEN_BACK = "G"
    """The worker returned the operation before anything left."""


class ErrorClass(StrEnum):
    """What a remote's refusal means, whatever words it used (filled in by a connector's error
    table)."""

    TRANSIENT = "transient"
    THROTTLED = "throttled"
    INVALID = "invalid"
    DENIED = "denied"
    CREDENTIAL = "credential"
    CONFLICT = "conflict"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Move:
    """One allowed change of state: the row of protocol §5 it comes from, and who may make it."""

    row: int
    before: State | None
    after: State
    actors: frozenset[Actor]


def _moves() -> tuple[Move, ...]:
    s, worker, sweep, person, submit = (
        State,
        Actor.WORKER,
        Actor.SWEEP,
        Actor.PERSON,
        Actor.SUBMIT,
    )
    table: list[tuple[int, tuple[State | None, ...], tuple[State, ...], tuple[Actor, ...]]] = [
        (1, (None,), (s.PENDING, s.DISCARDED), (submit, worker, person)),
        (2, (s.PENDING, s.RETRY), (s.RUNNING,), (worker,)),
        (3, (s.RUNNING,), (s.PENDING, s.RETRY), (worker, sweep)),
        (4, (s.RUNNING,), (s.SENT,), (worker,)),
        (5, (s.RUNNING,), (s.FAILED, s.DISCARDED), (worker,)),
        (6, (s.RUNNING,), (s.REVIEW,), (worker, sweep)),
        (7, (s.SENT,), (s.CONFIRMED,), (worker,)),
        (8, (s.SENT,), (s.ACCEPTED,), (worker,)),
        (9, (s.SENT,), (s.RETRY,), (worker, sweep)),
        (10, (s.SENT,), (s.UNCERTAIN,), (worker, sweep)),
        (11, (s.SENT,), (s.FAILED,), (worker,)),
        (12, (s.SENT,), (s.REVIEW,), (worker, sweep)),
        (13, (s.UNCERTAIN,), (s.UNCERTAIN,), (worker,)),
        (13, (s.ACCEPTED,), (s.ACCEPTED,), (worker,)),
        (14, (s.UNCERTAIN,), (s.CONFIRMED, s.ACCEPTED, s.FAILED, s.DISCARDED), (worker,)),
        (15, (s.UNCERTAIN,), (s.RETRY,), (worker,)),
        (16, (s.UNCERTAIN, s.ACCEPTED), (s.REVIEW,), (worker, sweep)),
        (17, (s.ACCEPTED,), (s.CONFIRMED, s.FAILED), (worker,)),
        (18, (s.PENDING, s.RETRY), (s.DISCARDED,), (submit, person)),
        (19, (s.RETRY,), (s.REVIEW,), (worker, sweep)),
        (20, (s.FAILED,), (s.RETRY, s.DISCARDED), (person,)),
        (21, (s.REVIEW,), (s.CONFIRMED, s.RETRY, s.UNCERTAIN, s.DISCARDED), (person,)),
        (22, (s.PENDING, s.RETRY), (s.UNCERTAIN, s.RETRY, s.REVIEW), (sweep,)),
        (22, (s.RUNNING, s.SENT), (s.UNCERTAIN, s.RETRY, s.REVIEW), (sweep,)),
        (22, (s.UNCERTAIN,), (s.UNCERTAIN, s.REVIEW), (sweep,)),
        (22, (s.ACCEPTED,), (s.UNCERTAIN, s.ACCEPTED, s.REVIEW), (sweep,)),
        (23, (s.RETRY, s.RUNNING), (s.UNCERTAIN,), (worker, sweep)),
        (23, (s.FAILED, s.REVIEW, s.RETRY), (s.REVIEW,), (worker,)),
        (24, (s.RETRY, s.UNCERTAIN, s.ACCEPTED), (s.REVIEW,), (person,)),
    ]
    return tuple(
        Move(row, before, after, frozenset(actors))
        for row, befores, afters, actors in table
        for before in befores
        for after in afters
    )


MOVES: tuple[Move, ...] = _moves()
ALLOWED: frozenset[tuple[State | None, State]] = frozenset((m.before, m.after) for m in MOVES)


def allowed(before: State | None, after: State, actor: Actor) -> bool:
    """Whether `actor` may move an operation from `before` to `after` (protocol §5)."""
    return any(m.before == before and m.after == after and actor in m.actors for m in MOVES)
