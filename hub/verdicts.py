"""The words of a judgement: what it is given, what it says, and how each verdict is written.

`Facts` and `Limits` go in, a `Verdict` comes out. The functions below the vocabulary write one kind
of verdict each and fill in what is always so of it: what a person is shown comes with advice
(protocol §16), what goes back to the queue keeps its doubt, what is to be looked up is in doubt
(§9), what is confirmed was answered well. A row of the judgement then says only what is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, Unpack

from hub.contract import Candidate, Done, Kind, Write
from hub.states import ErrorClass, Outcome, State


class Advice(StrEnum):
    """What a person is recommended to do."""

    LOOK_AGAIN = "look_again"
    RETRY = "retry"
    LINK = "link"
    DISCARD = "discard"
    CORRECT = "correct"
    NONE = ""


class Breath(StrEnum):
    """What an outcome says about the remote as a whole (counted by the breaker, protocol §11)."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


class Halt(StrEnum):
    """Why the whole connection has to stop, if it has to."""

    NO = ""
    CREDENTIAL = "credential"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of every path; all durations in seconds (protocol §9, §11, §18)."""

    max_attempts: int = 8
    max_age: float = 86_400.0
    max_repeats: int = 1
    max_lapses: int = 3
    uncertain_max: float = 86_400.0
    accepted_max: float = 86_400.0
    margin: float = 10.0
    retry_base: float = 5.0
    retry_cap: float = 900.0
    look_schedule: tuple[float, ...] = (5.0, 20.0, 60.0, 300.0, 900.0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an operation when something was seen. Durations in seconds, `None` where
    unknown."""

    state: State
    action: Write
    doubt: bool = False
    """An earlier attempt may have been executed."""
    attempts: int = 1
    repeats: int = 0
    lapses: int = 0
    looks: int = 0
    age: float = 0.0
    """In this state, or since the gate last opened, whichever is shorter."""
    since_last: float | None = None
    """Since the last moment our bytes can have left (`t_last`)."""
    first_sent_ago: float | None = None
    """Since the first marker (or since creation, when markers may have been forgotten)."""
    absent_for: float | None = None
    """Since the first trustworthy absence began; `None`: there was none."""
    look_took: float = 0.0
    """How long ago the look that is being judged was begun."""
    clock_jumped: bool = False
    """The database's clock made a step less than `max_exec` ago: waits cannot be trusted (A4)."""
    version: int = 0
    inherited: bool = False
    """The doubt was left by an earlier operation of the stream: no key of this one absorbs it."""
    restored: bool = False
    """A backup was restored since: a newer version may have gone out and been forgotten (protocol
    §17)."""
    as_last_seen: bool = False
    """What differs at the remote is just as it was last seen there."""

    def key_alive(self, ahead: float = 0.0) -> bool:
        """Whether a repeat by key, `ahead` seconds from now, is still absorbed (protocol §8)."""
        action = self.action
        if action.key_ttl is None or self.first_sent_ago is None or self.inherited:
            return False
        if not action.key_atomic and action.max_exec is None:
            # When the first copy is no longer running cannot be said, so a repeat may run beside
            # it.
            return False
        elapsed = self.first_sent_ago + ahead
        return elapsed + action.max_send + (action.max_exec or 0.0) < action.key_ttl * 0.9


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows. Times are seconds from the moment it is written; the worker writes it guarded
    by its token."""

    state: State
    code: str
    text: str
    outcome: Outcome = Outcome.LOOKED
    delay: float = 0.0
    doubt: bool = False
    costs_attempt: bool = True
    adds_repeat: bool = False
    adds_lapse: bool = False
    hold: float | None = None
    """The stream's next operation waits until `t_last` plus this."""
    halt: Halt = Halt.NO
    breath: Breath = Breath.NEUTRAL
    throttle: float | None = None
    """Everything on this connection waits this long."""
    absent: bool = False
    """This look is the first absence that may count."""
    assumption: str = ""
    advice: Advice = Advice.NONE
    candidates: tuple[Candidate, ...] = ()
    done: Done | None = None
    """What to store with a confirmation."""
    job: str = ""
    error: ErrorClass | None = None
    status: int | None = None
    degrade: str = ""
    """A capability that turned out not to be there; the action drops a class on this connection."""


@dataclass(frozen=True, slots=True)
class Given:
    """All that a judgement goes by besides what was seen; `roll`, in [0, 1), is its only chance."""

    facts: Facts
    limits: Limits
    roll: float = 0.5


# --- one function per kind of verdict -------------------------------------------------------------


class More(TypedDict, total=False):
    """What a row may say besides its code, its words and its outcome (see `Verdict`)."""

    delay: float
    costs_attempt: bool
    adds_repeat: bool
    adds_lapse: bool
    hold: float | None
    halt: Halt
    breath: Breath
    throttle: float | None
    absent: bool
    assumption: str
    candidates: tuple[Candidate, ...]
    job: str
    error: ErrorClass | None
    status: int | None
    degrade: str


def review(
    facts: Facts,
    code: str,
    text: str,
    outcome: Outcome,
    *,
    doubt: bool | None = None,
    advice: Advice = Advice.LOOK_AGAIN,
    **more: Unpack[More],
) -> Verdict:
    """A person decides. In doubt as before, unless said; never told to look where nothing can."""
    if advice is Advice.LOOK_AGAIN:
        advice = advice_in_doubt(facts)
    in_doubt = facts.doubt if doubt is None else doubt
    return Verdict(State.REVIEW, code, text, outcome, doubt=in_doubt, advice=advice, **more)


def advice_in_doubt(facts: Facts) -> Advice:
    """Look again, or, where the hub cannot look, link what a person finds."""
    if facts.action.can_look:
        return Advice.LOOK_AGAIN
    return Advice.NONE if facts.action.kind is Kind.DELETE else Advice.LINK


def retry_unless_in_doubt(facts: Facts) -> Advice:
    """To retry is advised only where nothing may have happened yet."""
    return advice_in_doubt(facts) if facts.doubt else Advice.RETRY


def poison(
    facts: Facts,
    while_it: str,
    outcome: Outcome,
    *,
    doubt: bool | None = None,
    advice: Advice = Advice.LOOK_AGAIN,
    hold: float | None = None,
) -> Verdict:
    """Too many workers were lost over this in a row: a person decides (§11)."""
    return review(
        facts,
        "poison",
        f"The worker was lost {facts.lapses + 1} times in a row while it {while_it}.",
        outcome,
        doubt=doubt,
        advice=advice,
        adds_lapse=True,
        hold=hold,
    )


def failed(code: str, text: str, outcome: Outcome, **more: Unpack[More]) -> Verdict:
    """It did not happen, and no repeat will help: its cause has to be corrected."""
    return Verdict(State.FAILED, code, text, outcome, advice=Advice.CORRECT, **more)


def retry(
    facts: Facts,
    code: str,
    text: str,
    outcome: Outcome,
    *,
    doubt: bool | None = None,
    **more: Unpack[More],
) -> Verdict:
    """It is sent again after `delay`. In doubt as before, unless said."""
    in_doubt = facts.doubt if doubt is None else doubt
    return Verdict(State.RETRY, code, text, outcome, doubt=in_doubt, **more)


def uncertain(code: str, text: str, outcome: Outcome, **more: Unpack[More]) -> Verdict:
    """It may have happened: that is found out next."""
    return Verdict(State.UNCERTAIN, code, text, outcome, doubt=True, **more)


def accepted(
    code: str, text: str, outcome: Outcome, *, doubt: bool = False, **more: Unpack[More]
) -> Verdict:
    """The remote works on it: its end is asked for after `delay`."""
    return Verdict(State.ACCEPTED, code, text, outcome, doubt=doubt, **more)


def confirmed(code: str, text: str, outcome: Outcome, done: Done, **more: Unpack[More]) -> Verdict:
    """It happened, and `done` is what to store of it."""
    more["breath"] = Breath.GOOD
    return Verdict(State.CONFIRMED, code, text, outcome, done=done, **more)


def stale(text: str, outcome: Outcome, **more: Unpack[More]) -> Verdict:
    """A newer version is there: this one is no longer wanted (§12)."""
    return Verdict(State.DISCARDED, "stale", text, outcome, **more)
