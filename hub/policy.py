"""The judgement: what follows from what was seen. One pure function, total over every combination.

`decide(facts, seen)` answers for every state, declaration and observation with a `Verdict`. The
promise it keeps (protocol §1.2): a write that may have left is never sent again unless a
declaration makes the repeat harmless, a trusted look found nothing, or a person decided. `classify`
turns an HTTP answer into what was seen (protocol §10). Nothing here reads a clock, a database or a
network; chance comes in as `roll`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from hub.contract import (
    FIND_BY_EXTERNAL_ID,
    IDEMPOTENCY_KEY,
    Accepted,
    Answer,
    BodyLost,
    Candidate,
    Conflict,
    Done,
    Echo,
    ErrorTable,
    FailureKind,
    JobState,
    Kind,
    Lapsed,
    Looked,
    Progress,
    Refused,
    SafetyClass,
    Seen,
    Unanswered,
    Write,
)
from hub.states import CLAIMABLE, ErrorClass, Outcome, State


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


# --- reading an answer (protocol §10) -------------------------------------------------------------

REFUSED_STATUSES = frozenset({400, 405, 406, 411, 413, 414, 415, 422, 428, 431, 451, 501})
_STATUS_CLASS: Mapping[int, ErrorClass] = {
    **dict.fromkeys(REFUSED_STATUSES, ErrorClass.INVALID),
    401: ErrorClass.CREDENTIAL,
    403: ErrorClass.DENIED,
    404: ErrorClass.MISSING,
    410: ErrorClass.MISSING,
    409: ErrorClass.CONFLICT,
    412: ErrorClass.CONFLICT,
    424: ErrorClass.CONFLICT,
    423: ErrorClass.TRANSIENT,
    429: ErrorClass.THROTTLED,
}
REPLAYED = "idempotent-replayed"


def classify(
    answer: Answer,
    table: ErrorTable,
    action: Write | None = None,
    retry_after: float | None = None,
) -> Seen | None:
    """What an answer says by itself; `None` when the connector has to read it (a success it can
    look into).

    `action` is None for reads. A table's statuses count for 4xx only, and not for 408.
    `retry_after` is the header's value in seconds, already clamped: it sets the earliest time and
    never turns an unknown outcome into a refusal.
    """
    status = answer.status
    try:
        code = table.code_of(answer)
        words = table.text_of(answer)
    except Exception:  # noqa: BLE001 - a table that cannot read a body says nothing about it
        code, words = None, ""
    replayed = (answer.header(REPLAYED) or "").strip().casefold() == "true"

    def unanswered(text: str) -> Unanswered:
        return Unanswered(text.strip(), status=status, retry_after=retry_after, replayed=replayed)

    if code is not None:
        error = table.lookup(code)
        if error is None or error is ErrorClass.UNKNOWN:
            known = "a server fault" if error else "an error code the table does not know"
            return unanswered(f"HTTP {status} with {known}: {code or '(empty)'} {words}")
        return Refused(
            error, words or code, code, status, retry_after, table.conflict(code), replayed
        )
    if status in (200, 201, 202, 204):
        if answer.body_lost:
            return BodyLost(status, f"HTTP {status}, but the body was cut")
        return None
    if status == 304 and action is not None and action.safety is SafetyClass.B:
        return Done(note="no change")
    if status in (307, 308):
        return Unanswered(
            f"HTTP {status}: the address has moved, and a write is never redirected",
            nothing_left=True,
            kind=FailureKind.ADDRESS,
            status=status,
        )
    if status in (421, 425):
        return Unanswered(
            f"HTTP {status}: refused before execution",
            nothing_left=True,
            kind=FailureKind.CONNECT,
            status=status,
            retry_after=retry_after,
        )
    # A redirect, a time-out or a server's fault never proves "not executed", whatever a table says
    # of the status: only a code the contract lists does (W7).
    speaks = 400 <= status < 500 and status != 408
    error = (table.statuses.get(status) if speaks else None) or _STATUS_CLASS.get(status)
    if error is None or error is ErrorClass.UNKNOWN:
        return unanswered(f"HTTP {status} {words}")
    told = words or f"HTTP {status}"
    return Refused(error, told, "", status, retry_after, _conflict(status, action), replayed)


def _conflict(status: int, action: Write | None) -> Conflict:
    if status == 412 and action is not None:
        return Conflict.EXISTS if action.kind is Kind.CREATE else Conflict.VERSION
    return Conflict.OTHER


# --- time -----------------------------------------------------------------------------------------


def backoff(attempts: int, limits: Limits, roll: float) -> float:
    """Seconds to the next try: full jitter over a doubling bound (protocol §11). `roll` is in [0,
    1)."""
    top = min(limits.retry_cap, limits.retry_base * 2.0 ** min(attempts, 30))
    return limits.retry_base + (max(top, limits.retry_base) - limits.retry_base) * roll


def look_delay(facts: Facts, limits: Limits, roll: float) -> float:
    """Seconds to the next look: the schedule, but never later than absence can first be trusted
    (§9.6)."""
    steps = limits.look_schedule
    step = steps[min(facts.looks, len(steps) - 1)]
    if facts.looks >= len(steps):
        step *= 0.8 + 0.4 * roll
    action = facts.action
    if action.max_exec is None or facts.since_last is None:
        return step
    settle = action.max_exec - facts.since_last
    if settle > 0:
        return min(step, settle + 0.02)
    if action.authoritative or action.index_lag is None:
        return step
    if facts.absent_for is None:
        return min(step, 0.02)
    left = max(action.index_lag - facts.absent_for, action.index_lag + settle)
    return min(step, left + 0.02) if left > 0 else step


def absence_trusted(facts: Facts) -> bool:
    """Whether "not there", seen by the look that is being judged, proves "did not happen"
    (§9.4)."""
    action = facts.action
    if action.max_exec is None or facts.since_last is None or facts.clock_jumped:
        return False
    begun_after = facts.since_last - facts.look_took - action.max_exec
    if begun_after < 0:
        return False
    if action.authoritative:
        return True
    if action.index_lag is None:
        return False
    return (
        facts.absent_for is not None
        and facts.absent_for - facts.look_took >= action.index_lag
        and facts.since_last - facts.absent_for >= action.max_exec
    )


def _first_absence(facts: Facts) -> bool:
    """Whether the look being judged may be the first of the two complete negative ones."""
    action = facts.action
    if action.max_exec is None or facts.since_last is None:
        return False
    if facts.since_last - facts.look_took < action.max_exec:
        return False
    # One that began too early by the numbers of today (max_exec was raised since) does not count.
    return facts.absent_for is None or facts.since_last - facts.absent_for < action.max_exec


def hold_for(action: Write, limits: Limits) -> float | None:
    """How long after `t_last` a late copy could still harm the stream's next operation (§12)."""
    harmful = action.safety in (SafetyClass.B_PRIME, SafetyClass.D) or (
        action.safety is SafetyClass.B and action.kind is Kind.CREATE
    )
    if not harmful:
        return None
    return action.max_exec if action.max_exec is not None else limits.uncertain_max


def _settle_left(facts: Facts, *, just_left: bool) -> float:
    """Seconds until the copy that may be under way can no longer be executed."""
    if facts.action.max_exec is None:
        return 0.0
    since = 0.0
    if not just_left:
        waited = facts.age if facts.state is State.UNCERTAIN else 0.0  # whatever left, left before
        since = waited if facts.since_last is None else facts.since_last
    return max(0.0, facts.action.max_exec - since)


def repeat_harmless(facts: Facts, ahead: float = 0.0) -> bool:
    """Whether what the action declares makes a repeat add nothing, `ahead` seconds from now
    (§8)."""
    match facts.action.safety:
        case SafetyClass.A | SafetyClass.A_LOOK:
            return facts.key_alive(ahead)
        case SafetyClass.B:
            return True
        case SafetyClass.B_PRIME:
            # Until when a late copy could still overwrite the next version has to be known.
            return facts.action.max_exec is not None
        case _:
            return False


def exhausted(facts: Facts, limits: Limits) -> bool:
    """Whether attempts or age are used up (protocol §11)."""
    return facts.attempts >= limits.max_attempts or facts.age >= limits.max_age


FORESEEN_BY_NOBODY = 3
"""Tries at what raises something no row of protocol §10 names, before a person sees it."""


# --- the judgement --------------------------------------------------------------------------------


def decide(facts: Facts, seen: Seen, limits: Limits, roll: float = 0.5) -> Verdict:
    """What follows from `seen`. Total: every combination has an answer; an impossible one goes to a
    person."""
    verdict = _judge(facts, seen, limits, roll)
    if verdict.state in CLAIMABLE and verdict.doubt:
        return _never_blind(facts, verdict)
    return verdict


def _never_blind(facts: Facts, verdict: Verdict) -> Verdict:
    """Promise 2 has the last word: what may have left goes out again only where that is harmless.

    It speaks up where a wait outlives the key, or where the action lost its class meanwhile (F53).
    """
    action = facts.action
    keyed = action.safety in (SafetyClass.A, SafetyClass.A_LOOK)
    delay = verdict.delay
    if keyed and not action.key_atomic:
        delay = max(delay, _settle_left(facts, just_left=False))
    if repeat_harmless(facts, delay):
        return replace(verdict, delay=delay)
    code = "key_used_up" if keyed else "no_safe_repeat"
    why = (
        "Its key can no longer be relied on"
        if keyed
        else "It may have been executed, and this action offers no safe repeat"
    )
    text = f"{verdict.text} {why}"
    if action.can_look:
        return replace(
            verdict,
            state=State.UNCERTAIN,
            code=code,
            text=f"{text}; what is there is looked up instead.",
            advice=Advice.NONE,
        )
    return replace(
        verdict,
        state=State.REVIEW,
        code=code,
        text=f"{text}, and nothing can be looked up: a person decides.",
        delay=0.0,
        advice=_advice(facts),
        assumption="A2" if keyed else "",
    )


def _advice(facts: Facts) -> Advice:
    """What to do about a doubt: look again, or, where the hub cannot look, link what a person
    finds."""
    if facts.action.can_look:
        return Advice.LOOK_AGAIN
    return Advice.NONE if facts.action.kind is Kind.DELETE else Advice.LINK


def _judge(facts: Facts, seen: Seen, limits: Limits, roll: float) -> Verdict:
    match facts.state:
        case State.RUNNING:
            return _before_the_marker(facts, seen, limits, roll)
        case State.SENT:
            return _after_the_marker(facts, seen, limits, roll)
        case State.UNCERTAIN:
            return _looking(facts, seen, limits, roll)
        case State.ACCEPTED:
            return _polling(facts, seen, limits, roll)
        case State.RETRY | State.PENDING:
            return _waiting(facts, seen, limits, roll)
        case _:
            return Verdict(
                facts.state,
                "at_rest",
                "Nothing follows: the operation is at rest.",
                doubt=facts.doubt,
            )


def _review(
    facts: Facts,
    code: str,
    text: str,
    outcome: Outcome,
    *,
    doubt: bool | None = None,
    advice: Advice = Advice.LOOK_AGAIN,
    **more: Any,
) -> Verdict:
    if advice is Advice.LOOK_AGAIN:
        advice = _advice(facts)
    return Verdict(
        State.REVIEW,
        code,
        text,
        outcome,
        doubt=facts.doubt if doubt is None else doubt,
        advice=advice,
        **more,
    )


def _lost(facts: Facts, when: str) -> str:
    return f"The worker was lost {facts.lapses + 1} times in a row {when}."


def _before_the_marker(facts: Facts, seen: Seen, limits: Limits, roll: float) -> Verdict:
    """State `running`: nothing has left under this token (rows 3, 5, 6, 23)."""
    back = State.RETRY if facts.doubt else State.PENDING

    def again(code: str, text: str, outcome: Outcome, **more: Any) -> Verdict:
        if exhausted(facts, limits) and more.get("costs_attempt", True):
            return _review(
                facts, "exhausted", f"{text} No attempts are left.", outcome, advice=Advice.RETRY
            )
        return Verdict(
            back,
            code,
            text,
            outcome,
            delay=more.pop("delay", backoff(facts.attempts, limits, roll)),
            doubt=facts.doubt,
            **more,
        )

    match seen:
        case Lapsed():
            if facts.lapses + 1 >= limits.max_lapses:
                return _review(
                    facts,
                    "poison",
                    _lost(facts, "while it worked on this"),
                    Outcome.GIVEN_BACK,
                    advice=Advice.RETRY if not facts.doubt else Advice.LOOK_AGAIN,
                    adds_lapse=True,
                )
            return Verdict(
                back,
                "lapsed",
                "The worker was lost before anything left; it goes back to the queue.",
                Outcome.GIVEN_BACK,
                doubt=facts.doubt,
                adds_lapse=True,
            )
        case Looked(candidates=found) if found:
            return Verdict(
                State.UNCERTAIN,
                "found_before_repeat",
                "A last look before the repeat found something; it is looked at first.",
                Outcome.LOOKED,
                doubt=True,
            )
        case Unanswered(kind=FailureKind.ABORTED):
            return Verdict(
                back,
                "given_back",
                "Given back before anything left.",
                Outcome.GIVEN_BACK,
                doubt=facts.doubt,
                costs_attempt=False,
            )
        case Unanswered(kind=FailureKind.ADDRESS | FailureKind.LOCAL as kind) as never:
            return _local_fault(facts, never.text, kind)
        case Unanswered(kind=FailureKind.CERTIFICATE | FailureKind.PROXY_AUTH as kind) as shut:
            return again(
                "certificate" if kind is FailureKind.CERTIFICATE else "proxy_login",
                shut.text,
                Outcome.NOTHING_LEFT,
                costs_attempt=False,
                halt=_halt(kind),
            )
        case Unanswered(kind=FailureKind.OTHER) as ours:
            if facts.attempts >= FORESEEN_BY_NOBODY:
                return _review(
                    facts, "our_defect", ours.text, Outcome.NOTHING_LEFT, advice=Advice.RETRY
                )
            return again("our_defect", ours.text, Outcome.NOTHING_LEFT)
        case Unanswered():
            return again(
                "read_failed",
                seen.text,
                Outcome.NOTHING_LEFT,
                delay=_not_before(seen, facts, limits, roll),
                breath=Breath.BAD,
                status=seen.status,
            )
        case Refused(error=ErrorClass.CREDENTIAL):
            return again(
                "credential",
                f"The remote refuses our credential: {seen.text}",
                Outcome.DENIED,
                costs_attempt=False,
                halt=Halt.CREDENTIAL,
                error=seen.error,
                status=seen.status,
            )
        case Refused(error=ErrorClass.TRANSIENT | ErrorClass.THROTTLED):
            return again(
                "throttled" if seen.error is ErrorClass.THROTTLED else "busy",
                seen.text,
                Outcome.REFUSED_FOR_NOW,
                costs_attempt=False,
                delay=_not_before(seen, facts, limits, roll),
                throttle=_throttle(seen, facts, limits, roll),
                error=seen.error,
                status=seen.status,
                breath=Breath.GOOD,
            )
        case Refused(error=ErrorClass.CONFLICT, conflict=Conflict.VERSION):
            if facts.doubt:
                return _review(facts, "newer_there", seen.text, Outcome.CONFLICT, error=seen.error)
            return Verdict(
                State.DISCARDED,
                "stale",
                f"A newer version is already there: {seen.text}",
                Outcome.CONFLICT,
                error=seen.error,
                status=seen.status,
            )
        case Refused(error=ErrorClass.MISSING):
            return _review(
                facts,
                "vanished",
                f"The object is not there any more: {seen.text}",
                Outcome.CONFLICT,
                advice=Advice.DISCARD,
                error=seen.error,
                status=seen.status,
            )
        case Refused(error=ErrorClass.DENIED | ErrorClass.CONFLICT):
            return _review(
                facts,
                "denied" if seen.error is ErrorClass.DENIED else "conflict",
                seen.text,
                Outcome.DENIED if seen.error is ErrorClass.DENIED else Outcome.CONFLICT,
                advice=Advice.RETRY if not facts.doubt else Advice.LOOK_AGAIN,
                error=seen.error,
                status=seen.status,
            )
        case Refused(error=ErrorClass.UNKNOWN):
            return again("read_failed", seen.text, Outcome.NOTHING_LEFT, breath=Breath.BAD)
        case Refused():
            if facts.doubt:
                return _review(facts, "refused", seen.text, Outcome.REFUSED, error=seen.error)
            return Verdict(
                State.FAILED,
                "refused",
                seen.text,
                Outcome.REFUSED,
                advice=Advice.CORRECT,
                error=seen.error,
                status=seen.status,
            )
        case _:
            return again(
                "read_failed", "Preparing it brought no usable answer.", Outcome.NOTHING_LEFT
            )


def _local_fault(facts: Facts, text: str, kind: FailureKind) -> Verdict:
    """A fault on our side that repeating cannot cure (row 5; row 6 when in doubt)."""
    code = "configuration" if kind is FailureKind.ADDRESS else "our_defect"
    if facts.doubt:
        return _review(facts, code, text, Outcome.NOTHING_LEFT)
    return Verdict(State.FAILED, code, text, Outcome.NOTHING_LEFT, advice=Advice.CORRECT)


def _halt(kind: FailureKind | None) -> Halt:
    """What a failure says about the whole connection."""
    match kind:
        case FailureKind.CERTIFICATE:
            return Halt.CERTIFICATE
        case FailureKind.PROXY_AUTH:
            return Halt.CREDENTIAL
        case _:
            return Halt.NO


def _breath(seen: Unanswered) -> Breath:
    """Whether silence speaks against the remote: our own faults never do (protocol §11)."""
    ours = (FailureKind.ADDRESS, FailureKind.LOCAL, FailureKind.OTHER, FailureKind.ABORTED)
    return Breath.NEUTRAL if seen.kind in ours else Breath.BAD


def _not_before(seen: Refused | Unanswered, facts: Facts, limits: Limits, roll: float) -> float:
    own = backoff(facts.attempts, limits, roll)
    return max(own, seen.retry_after) if seen.retry_after is not None else own


def _throttle(seen: Refused, facts: Facts, limits: Limits, roll: float) -> float | None:
    """How long the whole connection waits; only a rate limit says something about the others."""
    if seen.error is not ErrorClass.THROTTLED:
        return None
    return seen.retry_after if seen.retry_after is not None else min(1.0, limits.retry_base)


def _after_the_marker(facts: Facts, seen: Seen, limits: Limits, roll: float) -> Verdict:
    """State `sent`: bytes may have left (rows 7-12)."""
    match seen:
        case Done():
            return _done(facts, seen, limits, roll)
        case Accepted(reference=reference):
            if seen.echo is Echo.OTHER or not reference:
                return _unknown(facts, "It was accepted without a usable reference.", limits, roll)
            return Verdict(
                State.ACCEPTED,
                "accepted",
                "Taken over there; its end is asked for.",
                Outcome.ACCEPTED,
                delay=min(max(seen.poll_after, 0.0), limits.accepted_max),
                job=reference,
                breath=Breath.GOOD,
            )
        case BodyLost():
            return _unknown(
                facts,
                f"It happened ({seen.text or f'HTTP {seen.status}'}), but its answer was lost.",
                limits,
                roll,
                code="body_lost",
                status=seen.status,
            )
        case Unanswered(nothing_left=True):
            return _nothing_left(facts, seen, limits, roll)
        case Unanswered(replayed=True) | Refused(replayed=True):
            return _stored_error(facts, seen)
        case Unanswered():
            return _unknown(
                facts,
                seen.text,
                limits,
                roll,
                status=seen.status,
                breath=_breath(seen),
                not_before=seen.retry_after,
            )
        case Refused():
            return _refused(facts, seen, limits, roll)
        case Lapsed():
            return _unknown(
                facts,
                "The worker was lost after the marker: it may have been sent.",
                limits,
                roll,
                code="lapsed",
                lapsed=True,
            )
        case _:
            return _unknown(facts, "The answer says nothing about this write.", limits, roll)


def _stored_error(facts: Facts, seen: Unanswered | Refused) -> Verdict:
    """The remote keeps an error under our key and gives it back: no repeat brings another (F50)."""
    return _review(
        facts,
        "key_stores_error",
        f"The remote repeats an earlier error under our key: {seen.text} The same key will bring "
        "it every time; only a new operation with a key of its own can get further.",
        Outcome.UNKNOWN if isinstance(seen, Unanswered) else Outcome.REFUSED,
        doubt=facts.doubt or isinstance(seen, Unanswered),
        assumption="A2",
        error=seen.error if isinstance(seen, Refused) else None,
        status=seen.status,
        breath=Breath.NEUTRAL,
    )


def _done(facts: Facts, seen: Done, limits: Limits, roll: float) -> Verdict:
    action = facts.action
    if seen.echo is Echo.OTHER:
        text = f"The answer carries another reference than ours. {seen.note}".strip()
        return _unknown(facts, text, limits, roll)
    if action.creates and not seen.remote_ref:
        return _unknown(facts, "The answer names no object.", limits, roll, code="body_lost")
    if seen.echo is Echo.MISSING:
        if action.capabilities & IDEMPOTENCY_KEY:
            if facts.doubt:
                return _review(
                    facts,
                    "key_ignored",
                    "The repeat shows no sign that our key was honoured: there may be two of it.",
                    Outcome.DONE,
                    doubt=True,
                    assumption="A2",
                    candidates=_as_candidate(seen),
                    degrade="key",
                    breath=Breath.GOOD,
                )
            return Verdict(
                State.CONFIRMED,
                "confirmed",
                "Done. The answer shows no sign of our key: this action no longer relies on it.",
                Outcome.DONE,
                done=seen,
                degrade="key",
                breath=Breath.GOOD,
            )
        return _review(
            facts,
            "reference_ignored",
            "Created, but the remote did not keep our reference: it could not be found again.",
            Outcome.DONE,
            doubt=True,
            advice=Advice.LINK,
            candidates=_as_candidate(seen),
            degrade="find",
            breath=Breath.GOOD,
        )
    return Verdict(
        State.CONFIRMED,
        "confirmed",
        seen.note or "Done, and seen in the answer.",
        Outcome.DONE,
        done=seen,
        breath=Breath.GOOD,
    )


def _as_candidate(seen: Done) -> tuple[Candidate, ...]:
    if not seen.remote_ref:
        return ()
    return (Candidate(seen.remote_ref, matches=True, fields=seen.values, values=seen.values),)


def _nothing_left(facts: Facts, seen: Unanswered, limits: Limits, roll: float) -> Verdict:
    """N after the marker: certain that no byte of ours was executed."""
    match seen.kind:
        case FailureKind.ABORTED:
            return Verdict(
                State.RETRY,
                "given_back",
                f"Nothing left: {seen.text}",
                Outcome.NOTHING_LEFT,
                doubt=facts.doubt,
                costs_attempt=False,
            )
        case FailureKind.ADDRESS | FailureKind.LOCAL as kind:
            if facts.doubt:
                return _review(
                    facts,
                    "configuration" if kind is FailureKind.ADDRESS else "our_defect",
                    seen.text,
                    Outcome.NOTHING_LEFT,
                )
            return _local_fault(facts, seen.text, kind)
        case FailureKind.CERTIFICATE | FailureKind.PROXY_AUTH as kind:
            certificate = kind is FailureKind.CERTIFICATE
            return Verdict(
                State.RETRY,
                "certificate" if certificate else "proxy_login",
                seen.text,
                Outcome.NOTHING_LEFT,
                delay=backoff(facts.attempts, limits, roll),
                doubt=facts.doubt,
                costs_attempt=False,
                halt=_halt(kind),
            )
        case FailureKind.OTHER if facts.attempts >= FORESEEN_BY_NOBODY:
            return _review(
                facts, "our_defect", seen.text, Outcome.NOTHING_LEFT, advice=Advice.RETRY
            )
    if exhausted(facts, limits):
        return _review(
            facts,
            "exhausted",
            f"{seen.text} No attempts are left.",
            Outcome.NOTHING_LEFT,
            advice=Advice.RETRY if not facts.doubt else Advice.LOOK_AGAIN,
            breath=_breath(seen),
            status=seen.status,
        )
    return Verdict(
        State.RETRY,
        "our_defect" if seen.kind is FailureKind.OTHER else "not_reached",
        f"Nothing left: {seen.text}",
        Outcome.NOTHING_LEFT,
        delay=_not_before(seen, facts, limits, roll),
        doubt=facts.doubt,
        breath=_breath(seen),
        status=seen.status,
    )


def _unknown(
    facts: Facts,
    text: str,
    limits: Limits,
    roll: float,
    *,
    code: str = "unknown",
    lapsed: bool = False,
    status: int | None = None,
    breath: Breath = Breath.BAD,
    error: ErrorClass | None = None,
    not_before: float | None = None,
) -> Verdict:
    """U: it may have been executed. What may follow depends on what the action declares (protocol
    §8)."""
    action = facts.action
    hold = hold_for(action, limits)
    if code == "body_lost":
        breath = Breath.GOOD
    common: dict[str, Any] = {
        "doubt": True,
        "hold": hold,
        "breath": Breath.NEUTRAL if lapsed else breath,
        "adds_lapse": lapsed,
        "status": status,
        "error": error,
    }
    if lapsed and facts.lapses + 1 >= limits.max_lapses:
        common.pop("doubt")
        return _review(
            facts,
            "poison",
            _lost(facts, "while it worked on this"),
            Outcome.UNKNOWN,
            doubt=True,
            **common,
        )
    wait = _settle_left(facts, just_left=not lapsed)
    match action.safety:
        case SafetyClass.A:
            # Not atomic: a repeat beside a first copy that still runs would run twice (F54).
            pause = max(
                backoff(facts.attempts, limits, roll),
                0.0 if action.key_atomic else wait,
                not_before or 0.0,
            )
            if exhausted(facts, limits) or not facts.key_alive(pause):
                common.pop("doubt")
                return _review(
                    facts,
                    "key_used_up",
                    f"{text} Its key can no longer be relied on, and nothing can be looked up.",
                    Outcome.UNKNOWN,
                    doubt=True,
                    assumption="A2",
                    **common,
                )
            return Verdict(
                State.RETRY,
                code,
                f"{text} It is repeated with the same key.",
                Outcome.UNKNOWN,
                delay=pause,
                **common,
            )
        case SafetyClass.D:
            common.pop("doubt")
            return _review(
                facts,
                code,
                f"{text} This action offers nothing to find out by, so a person decides.",
                Outcome.UNKNOWN,
                doubt=True,
                **common,
            )
        case _:
            after = replace(
                facts, looks=0, absent_for=None, since_last=facts.since_last if lapsed else 0.0
            )
            if action.can_look:
                delay = look_delay(after, limits, roll)
            elif action.safety is SafetyClass.B:
                delay = backoff(facts.attempts, limits, roll)
            else:
                delay = max(wait, backoff(facts.attempts, limits, roll))
            return Verdict(
                State.UNCERTAIN,
                code,
                f"{text} Whether it happened is found out next.",
                Outcome.UNKNOWN,
                delay=max(delay, not_before or 0.0),
                **common,
            )


def _refused(facts: Facts, seen: Refused, limits: Limits, roll: float) -> Verdict:
    action = facts.action
    told: dict[str, Any] = {"error": seen.error, "status": seen.status}
    match seen.error:
        case ErrorClass.TRANSIENT | ErrorClass.THROTTLED:
            if facts.age >= limits.max_age:
                return _review(
                    facts,
                    "exhausted",
                    f"{seen.text} It has been refused for too long.",
                    Outcome.REFUSED_FOR_NOW,
                    advice=Advice.RETRY if not facts.doubt else Advice.LOOK_AGAIN,
                    **told,
                )
            return Verdict(
                State.RETRY,
                "throttled" if seen.error is ErrorClass.THROTTLED else "busy",
                f"Refused for now: {seen.text}",
                Outcome.REFUSED_FOR_NOW,
                delay=_not_before(seen, facts, limits, roll),
                doubt=facts.doubt,
                costs_attempt=False,
                throttle=_throttle(seen, facts, limits, roll),
                breath=Breath.GOOD,
                **told,
            )
        case ErrorClass.CREDENTIAL:
            return Verdict(
                State.RETRY,
                "credential",
                f"The remote refuses our credential: {seen.text}",
                Outcome.DENIED,
                delay=backoff(facts.attempts, limits, roll),
                doubt=facts.doubt,
                costs_attempt=False,
                halt=Halt.CREDENTIAL,
                **told,
            )
        case ErrorClass.UNKNOWN:
            return _unknown(facts, seen.text, limits, roll, status=seen.status, error=seen.error)
        case ErrorClass.MISSING if action.kind is Kind.DELETE:
            return Verdict(
                State.CONFIRMED,
                "already_gone",
                "It was not there any more: nothing was left to delete.",
                Outcome.DONE,
                done=Done(),
                breath=Breath.GOOD,
                **told,
            )
        case ErrorClass.MISSING if action.kind is Kind.UPDATE:
            return _review(
                facts,
                "vanished",
                f"The object to change is not there any more: {seen.text}",
                Outcome.CONFLICT,
                advice=Advice.DISCARD,
                breath=Breath.GOOD,
                **told,
            )
        case ErrorClass.DENIED:
            return _review(
                facts,
                "denied",
                f"The remote denies this action: {seen.text}",
                Outcome.DENIED,
                advice=Advice.RETRY if not facts.doubt else Advice.LOOK_AGAIN,
                breath=Breath.GOOD,
                **told,
            )
        case ErrorClass.CONFLICT:
            return _conflicting(facts, seen, limits, roll)
        case _:
            if facts.doubt:
                # The first copy may still be executed: a refusal of the repeat proves nothing
                # (F115).
                return _unknown(
                    facts,
                    f"A repeat was refused ({seen.text}) while an earlier copy may be under way.",
                    limits,
                    roll,
                    status=seen.status,
                    breath=Breath.GOOD,
                    error=seen.error,
                )
            return Verdict(
                State.FAILED,
                "refused",
                seen.text or "The remote refused it for good.",
                Outcome.REFUSED,
                advice=Advice.CORRECT,
                breath=Breath.GOOD,
                **told,
            )


def _conflicting(facts: Facts, seen: Refused, limits: Limits, roll: float) -> Verdict:
    action = facts.action
    told: dict[str, Any] = {"error": seen.error, "status": seen.status, "breath": Breath.GOOD}
    match seen.conflict:
        case Conflict.KEY_IN_PROGRESS if facts.key_alive(limits.retry_cap) and not exhausted(
            facts, limits
        ):
            return Verdict(
                State.RETRY,
                "key_in_progress",
                "The remote still works on our key; the same request is repeated later.",
                Outcome.CONFLICT,
                delay=max(
                    _not_before(seen, facts, limits, roll),
                    0.0 if action.key_atomic else _settle_left(facts, just_left=True),
                ),
                doubt=True,
                **told,
            )
        case Conflict.KEY_IN_PROGRESS:
            # It works on our key, so it may be executed; but no repeat is left to wait with.
            return _unknown(
                facts,
                f"The remote still works on our key: {seen.text}",
                limits,
                roll,
                not_before=seen.retry_after,
                **told,
            )
        case Conflict.KEY_REUSED:
            return _review(
                facts,
                "key_reused",
                f"The remote knows our key with another content: {seen.text}",
                Outcome.CONFLICT,
                doubt=True,
                **told,
            )
        case Conflict.EXISTS | Conflict.VERSION if action.can_look:
            return Verdict(
                State.UNCERTAIN,
                "exists" if seen.conflict is Conflict.EXISTS else "version_conflict",
                f"{seen.text} What is there is read next.",
                Outcome.CONFLICT,
                doubt=True,
                hold=hold_for(action, limits),
                **told,
            )
    return _review(
        facts,
        "conflict",
        f"The remote reports a conflict: {seen.text}",
        Outcome.CONFLICT,
        advice=Advice.RETRY if not facts.doubt else Advice.LOOK_AGAIN,
        **told,
    )


def _looking(facts: Facts, seen: Seen, limits: Limits, roll: float) -> Verdict:
    """State `uncertain`: find out whether it happened (rows 14-16, protocol §9)."""
    match seen:
        case Looked(complete=True):
            return _looked(facts, seen, limits, roll)
        case Lapsed():
            if facts.lapses + 1 >= limits.max_lapses:
                return _review(
                    facts,
                    "poison",
                    _lost(facts, "while it looked"),
                    Outcome.LOOKED,
                    doubt=True,
                    adds_lapse=True,
                )
            return _keep_looking(
                facts, "The worker was lost while it looked.", limits, roll, lapsed=True
            )
        case Refused(error=ErrorClass.CREDENTIAL):
            verdict = _keep_looking(
                facts, f"The look was refused: our credential. {seen.text}", limits, roll
            )
            return replace(verdict, halt=Halt.CREDENTIAL, error=seen.error, status=seen.status)
        case Refused():
            verdict = _keep_looking(facts, f"The look was refused: {seen.text}", limits, roll)
            late = seen.retry_after if seen.retry_after is not None else 0.0
            return replace(
                verdict,
                delay=max(verdict.delay, late),
                error=seen.error,
                status=seen.status,
                throttle=_throttle(seen, facts, limits, roll),
            )
        case Unanswered(kind=FailureKind.ABORTED):
            return Verdict(
                State.UNCERTAIN,
                "look_given_back",
                "The look was given back.",
                Outcome.GIVEN_BACK,
                doubt=True,
            )
        case Unanswered():
            verdict = _keep_looking(facts, f"The look failed: {seen.text}", limits, roll)
            halt = _halt(seen.kind)
            return replace(
                verdict,
                delay=max(verdict.delay, seen.retry_after or 0.0),
                halt=halt,
                breath=_breath(seen) if halt is Halt.NO else Breath.NEUTRAL,
                status=seen.status,
            )
        case Looked():
            return _keep_looking(
                facts, f"The look was not complete. {seen.text}".strip(), limits, roll
            )
        case _:
            return _keep_looking(facts, "The look brought no usable answer.", limits, roll)


def _keep_looking(
    facts: Facts, text: str, limits: Limits, roll: float, *, lapsed: bool = False
) -> Verdict:
    """A failed look is no answer (§9.3); after `uncertain_max` a person takes over."""
    if facts.age >= limits.uncertain_max:
        return _review(
            facts,
            "undecided",
            f"{text} It could not be found out in time.",
            Outcome.LOOKED,
            doubt=True,
            assumption="" if facts.action.max_exec is not None else "A3",
            adds_lapse=lapsed,
        )
    delay = 0.0 if lapsed else max(look_delay(facts, limits, roll), limits.retry_base * 0.2)
    return Verdict(
        State.UNCERTAIN,
        "looking",
        text,
        Outcome.LOOKED,
        delay=delay,
        doubt=True,
        adds_lapse=lapsed,
    )


def _looked(facts: Facts, seen: Looked, limits: Limits, roll: float) -> Verdict:
    found = seen.candidates
    action = facts.action
    if len(found) > 1:
        return _review(
            facts,
            "several_found",
            f"{len(found)} objects carry our reference: one of them is a duplicate.",
            Outcome.LOOKED,
            doubt=True,
            advice=Advice.LINK,
            candidates=found,
            breath=Breath.GOOD,
        )
    if not found:
        if action.kind is Kind.DELETE and action.safety is not SafetyClass.C:
            if facts.inherited and not absence_trusted(facts):
                # "Gone" may only mean: the create this doubt is about has not arrived yet.
                return _not_yet(facts, limits, roll)
            return Verdict(
                State.CONFIRMED,
                "gone",
                "A look shows that it is gone.",
                Outcome.LOOKED,
                done=Done(note="A look shows that it is gone."),
                breath=Breath.GOOD,
            )
        if action.kind is Kind.UPDATE and action.safety in (SafetyClass.B, SafetyClass.B_PRIME):
            return _review(
                facts,
                "vanished",
                "The object to change is not there any more.",
                Outcome.LOOKED,
                doubt=True,
                advice=Advice.DISCARD,
                breath=Breath.GOOD,
            )
        return _absent(facts, limits, roll)
    return _one_found(facts, found[0], limits, roll)


def _one_found(facts: Facts, candidate: Candidate, limits: Limits, roll: float) -> Verdict:
    action = facts.action
    if candidate.running:
        return Verdict(
            State.ACCEPTED,
            "job_found",
            "Our job was found at work over there.",
            Outcome.LOOKED,
            job=candidate.remote_ref,
            delay=1.0,
            breath=Breath.GOOD,
        )
    if not candidate.remote_ref:
        return _keep_looking(facts, "The look names an object without an id.", limits, roll)
    if candidate.place:
        return _put_away(facts, candidate)
    by_id = _by_id(action)
    if by_id and facts.restored and not candidate.matches and not facts.as_last_seen:
        return _review(
            facts,
            "changed_meanwhile",
            "After a restore the object is neither as last seen nor as we mean it.",
            Outcome.LOOKED,
            doubt=True,
            candidates=(candidate,),
            breath=Breath.GOOD,
        )
    if by_id and action.kind is Kind.DELETE:
        return _harmless_repeat(
            facts, "It is still there; deleting it again adds nothing.", limits, roll
        )
    theirs = _number(candidate.version)
    if by_id and action.is_full_state and theirs is not None and theirs > facts.version:
        return Verdict(
            State.DISCARDED,
            "stale",
            f"Version {theirs} is already there; version {facts.version} is no longer wanted.",
            Outcome.LOOKED,
            doubt=False,
            breath=Breath.GOOD,
        )
    same_version = not candidate.version or theirs == facts.version
    if candidate.matches and same_version:
        return Verdict(
            State.CONFIRMED,
            "found",
            "A look found it, equal in every field we own.",
            Outcome.LOOKED,
            done=Done(
                candidate.remote_ref,
                candidate.remote_version,
                candidate.values or candidate.fields,
                note="A look found it, equal in every field we own.",
            ),
            breath=Breath.GOOD,
        )
    if by_id:
        return _harmless_repeat(
            facts,
            "The object is not yet as we mean it; sending it again adds nothing.",
            limits,
            roll,
        )
    return _review(
        facts,
        "found_different",
        "One object carries our reference, but it is not as we meant it.",
        Outcome.LOOKED,
        doubt=True,
        advice=Advice.LINK,
        candidates=(candidate,),
        breath=Breath.GOOD,
    )


def _put_away(facts: Facts, candidate: Candidate) -> Verdict:
    """In a bin or archive is found (§9.2); what a person put there is not for the machine to
    undo."""
    if facts.action.kind is Kind.DELETE and candidate.place == "bin":
        return Verdict(
            State.CONFIRMED,
            "gone",
            "A look shows it in the bin.",
            Outcome.LOOKED,
            done=Done(note="A look shows it in the bin."),
            breath=Breath.GOOD,
        )
    return _review(
        facts,
        "found_put_away",
        f"It was found, but it lies in the {candidate.place} over there.",
        Outcome.LOOKED,
        doubt=True,
        advice=Advice.LINK,
        candidates=(candidate,),
        breath=Breath.GOOD,
    )


def _by_id(action: Write) -> bool:
    """Whether a look at this action sees the object it is about, done or not, and may repeat."""
    if action.kind is Kind.COMMAND:
        return action.safety in (SafetyClass.B, SafetyClass.B_PRIME)
    return action.kind is not Kind.CREATE and action.safety in (
        SafetyClass.A_LOOK,
        SafetyClass.B,
        SafetyClass.B_PRIME,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _harmless_repeat(facts: Facts, text: str, limits: Limits, roll: float) -> Verdict:
    """Not (yet) as we mean it, where a repeat may be harmless.

    b′ waits until a late copy is spent (§12); a key that is not atomic, until no copy runs (§8).
    """
    action = facts.action
    wait = 0.0
    if action.safety is SafetyClass.A_LOOK:
        wait = 0.0 if action.key_atomic else _settle_left(facts, just_left=False)
        if not facts.key_alive(wait):
            return _review(
                facts,
                "key_used_up",
                f"{text} Its key can no longer be relied on.",
                Outcome.LOOKED,
                doubt=True,
                assumption="A2",
                breath=Breath.GOOD,
            )
    if action.safety is SafetyClass.B_PRIME and action.max_exec is None:
        return _keep_looking(
            facts, f"{text} How long a late copy may take is not stated (A3).", limits, roll
        )
    if exhausted(facts, limits):
        return _review(
            facts,
            "exhausted",
            f"{text} No attempts are left.",
            Outcome.LOOKED,
            doubt=True,
            advice=Advice.RETRY,
            breath=Breath.GOOD,
        )
    if action.safety is SafetyClass.B_PRIME:
        wait = _settle_left(facts, just_left=False)
        if wait > 0 and action.can_look:
            verdict = _keep_looking(facts, f"{text} A late copy may still arrive.", limits, roll)
            if verdict.state is State.UNCERTAIN:
                return replace(verdict, breath=Breath.GOOD)
            return verdict
    return Verdict(
        State.RETRY,
        "repeat_harmless",
        text,
        Outcome.LOOKED,
        delay=wait,
        doubt=True,
        breath=Breath.GOOD,
    )


def _absent(facts: Facts, limits: Limits, roll: float) -> Verdict:
    action = facts.action
    match action.safety:
        case SafetyClass.A | SafetyClass.A_LOOK:
            wait = 0.0 if action.key_atomic else _settle_left(facts, just_left=False)
            if facts.key_alive(wait) and not exhausted(facts, limits):
                return Verdict(
                    State.RETRY,
                    "repeat_by_key",
                    "Not found (yet); it is repeated with the same key.",
                    Outcome.LOOKED,
                    delay=wait,
                    doubt=True,
                    breath=Breath.GOOD,
                )
        case SafetyClass.B:
            return _harmless_repeat(
                facts, "Not there; the condition makes a repeat harmless.", limits, roll
            )
        case SafetyClass.B_PRIME:
            return _harmless_repeat(facts, "Not there; a repeat adds nothing.", limits, roll)
    if absence_trusted(facts):
        if facts.attempts >= limits.max_attempts:
            return _review(
                facts,
                "exhausted",
                "It did not happen, and no attempts are left.",
                Outcome.LOOKED,
                doubt=False,
                advice=Advice.RETRY,
                assumption="A3",
                breath=Breath.GOOD,
            )
        if facts.repeats >= limits.max_repeats:
            return _review(
                facts,
                "absent_again",
                "It was sent again after a first absence, and is again not there.",
                Outcome.LOOKED,
                doubt=False,
                advice=Advice.RETRY,
                assumption="A3",
                breath=Breath.GOOD,
            )
        return Verdict(
            State.RETRY,
            "absent",
            "Looked for after every wait that was declared, and not there: it did not happen.",
            Outcome.LOOKED,
            doubt=False,
            adds_repeat=True,
            assumption="A3",
            breath=Breath.GOOD,
        )
    return _not_yet(facts, limits, roll)


def _not_yet(facts: Facts, limits: Limits, roll: float) -> Verdict:
    """Not there, but too early to trust that; it may be the first of the two looks that count."""
    first = _first_absence(facts)
    verdict = _keep_looking(
        replace(facts, absent_for=facts.look_took) if first else facts,
        "Not found yet; it is too early to conclude anything.",
        limits,
        roll,
    )
    return replace(verdict, absent=first, breath=Breath.GOOD)


def _polling(facts: Facts, seen: Seen, limits: Limits, roll: float) -> Verdict:
    """State `accepted`: the remote works on (rows 16, 17).

    A job that is given up may still end over there, so it stays in doubt: an ordinary retry would
    start a second one (§9.7).
    """

    def later(text: str, not_before: float | None = None, **more: Any) -> Verdict:
        if facts.age >= limits.accepted_max:
            return _review(
                facts,
                "job_too_long",
                f"{text} It has not ended in time.",
                Outcome.LOOKED,
                doubt=True,
                **more,
            )
        steps = limits.look_schedule
        return Verdict(
            State.ACCEPTED,
            "working",
            text,
            Outcome.LOOKED,
            delay=max(steps[min(facts.looks, len(steps) - 1)], not_before or 0.0),
            doubt=facts.doubt,
            **more,
        )

    match seen:
        case Progress(job=JobState.RUNNING):
            return later(seen.text or "Still at work over there.", breath=Breath.GOOD)
        case Progress(job=JobState.FINISHED):
            if seen.finished_for != seen.ours:
                return _review(
                    facts,
                    "other_version",
                    f"The job ended for version {seen.finished_for or '?'}, not for {seen.ours}.",
                    Outcome.LOOKED,
                    doubt=False,
                )
            if facts.action.creates and not seen.remote_ref:
                return _review(
                    facts,
                    "no_result",
                    "The job ended without naming a result.",
                    Outcome.LOOKED,
                    doubt=True,
                )
            return Verdict(
                State.CONFIRMED,
                "finished",
                seen.text or "The job ended, for our version.",
                Outcome.DONE,
                done=Done(seen.remote_ref, seen.remote_version, seen.values),
                breath=Breath.GOOD,
            )
        case Progress(job=JobState.FAILED):
            if facts.doubt:
                return _review(
                    facts,
                    "job_failed",
                    f"The job ended in an error, and an earlier copy may be under way: {seen.text}",
                    Outcome.REFUSED,
                    breath=Breath.GOOD,
                )
            return Verdict(
                State.FAILED,
                "job_failed",
                seen.text or "The job ended in an error over there.",
                Outcome.REFUSED,
                advice=Advice.CORRECT,
                breath=Breath.GOOD,
            )
        case Progress():
            return _review(
                facts,
                "unknown_job",
                seen.text or "The remote does not know our job.",
                Outcome.LOOKED,
                doubt=True,
            )
        case Lapsed():
            if facts.lapses + 1 >= limits.max_lapses:
                return _review(
                    facts,
                    "poison",
                    _lost(facts, "while it asked"),
                    Outcome.LOOKED,
                    doubt=True,
                    adds_lapse=True,
                )
            return replace(later("The worker was lost while it asked."), adds_lapse=True, delay=0.0)
        case Refused(error=ErrorClass.CREDENTIAL):
            return later(f"Asking was refused: our credential. {seen.text}", halt=Halt.CREDENTIAL)
        case Refused(error=ErrorClass.MISSING):
            return _review(
                facts,
                "unknown_job",
                f"The remote does not know our job: {seen.text}",
                Outcome.LOOKED,
                doubt=True,
            )
        case Refused():
            return later(
                f"Asking was refused: {seen.text}",
                seen.retry_after,
                error=seen.error,
                status=seen.status,
                throttle=_throttle(seen, facts, limits, roll),
            )
        case Unanswered():
            halt = _halt(seen.kind)
            return later(
                f"Asking failed: {seen.text}",
                seen.retry_after,
                halt=halt,
                breath=_breath(seen) if halt is Halt.NO else Breath.NEUTRAL,
                status=seen.status,
            )
        case _:
            return later("Asking brought no usable answer.")


def _waiting(facts: Facts, seen: Seen, limits: Limits, roll: float) -> Verdict:
    """States `pending` and `retry`, asked by the sweep: is it still right to wait? (rows 19, 22,
    23)."""
    action = facts.action
    look_instead = facts.doubt and action.can_look and not repeat_harmless(facts)
    if isinstance(seen, Looked) and seen.candidates and facts.state is State.RETRY:
        return Verdict(
            State.UNCERTAIN,
            "named_by_late_result",
            "A late result names an object; it is looked at before anything is sent.",
            Outcome.LOOKED,
            doubt=True,
            hold=hold_for(action, limits),
        )
    if facts.state is State.RETRY and exhausted(facts, limits) and not look_instead:
        return _review(
            facts,
            "exhausted",
            "Attempts or time are used up.",
            Outcome.GIVEN_BACK,
            advice=Advice.RETRY if not facts.doubt else Advice.LOOK_AGAIN,
        )
    # Whether it may still be sent is said by the last word of `decide` (dead keys: row 23).
    return Verdict(
        facts.state, "waiting", "It waits its turn.", Outcome.GIVEN_BACK, doubt=facts.doubt
    )


def inherit(
    facts: Facts, limits: Limits, roll: float = 0.5, *, why: str, own_key: bool = False
) -> Verdict:
    """An operation that starts in doubt goes as U without having been sent (row 22; protocol §12,
    §17).

    `own_key` says that the doubt is about this very operation (a restore forgot its marker): then
    its own key absorbs a repeat. Doubt left by an earlier operation of the stream is absorbed by no
    key of ours.
    """
    action = facts.action
    keyed = action.safety in (SafetyClass.A, SafetyClass.A_LOOK)
    sendable = facts.state not in (State.UNCERTAIN, State.ACCEPTED)  # those look first (row 22)
    read_first = action.kind in (Kind.UPDATE, Kind.DELETE)
    if own_key and keyed and sendable and not read_first and facts.key_alive():
        return Verdict(
            State.RETRY,
            "inherited_doubt",
            f"{why} It is repeated with its key.",
            Outcome.UNKNOWN,
            doubt=True,
        )
    if action.can_look:
        return Verdict(
            State.UNCERTAIN,
            "inherited_doubt",
            f"{why} What is there is looked up first.",
            Outcome.UNKNOWN,
            doubt=True,
            hold=hold_for(action, limits),
        )
    return _review(
        facts,
        "inherited_doubt",
        f"{why} This action offers nothing to find out by, so a person decides.",
        Outcome.UNKNOWN,
        doubt=True,
    )


def degraded(action: Write, lost: Mapping[str, Any] | None) -> Write:
    """`action` without what it turned out not to have ("key", "find")."""
    if not lost:
        return action
    taken = {"key": IDEMPOTENCY_KEY, "find": FIND_BY_EXTERNAL_ID}.get(str(lost.get("lost")))
    return action.without(taken) if taken is not None else action
