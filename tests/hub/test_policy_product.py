"""The promise, over every combination of what can be declared, known and seen.

*A write that may have left is never sent again unless a declaration makes the repeat harmless, a
trusted look found nothing, or a person decided* (protocol §1.2), and what else must hold of every
verdict. The judge here is written from the protocol's words alone and uses nothing of `hub.policy`
but its front door; the last test shows that it sees planted weaknesses.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from hub import doubts, sends
from hub.contract import (
    CONDITIONAL_WRITE,
    FIND_BY_EXTERNAL_ID,
    FULL_STATE,
    IDEMPOTENCY_KEY,
    POLL_JOB,
    Accepted,
    BodyLost,
    Candidate,
    Capability,
    Conflict,
    Done,
    Echo,
    FailureKind,
    JobState,
    Kind,
    Lapsed,
    Looked,
    Progress,
    Refused,
    Seen,
    Unanswered,
    Write,
)
from hub.policy import Facts, Halt, Limits, Verdict, decide
from hub.states import MOVING, Actor, ErrorClass, Outcome, State, allowed
from hub.verdicts import Given

LIMITS = Limits()
DAY = 86_400.0
SEND, EXEC, LAG, TTL = 30.0, 60.0, 20.0, 3600.0
VERSION = 7

# --- everything that can be declared --------------------------------------------------------------


def _declarations() -> Iterator[Write]:
    key, find, poll = IDEMPOTENCY_KEY, FIND_BY_EXTERNAL_ID, POLL_JOB
    numbers: dict[str, Any] = {"max_send": SEND, "max_exec": EXEC}
    for kind in (Kind.CREATE, Kind.COMMAND):
        yield Write(key, kind, key_ttl=TTL, **numbers)
        yield Write(key | poll, kind, key_ttl=TTL, key_atomic=False, **numbers)
    yield Write(key, Kind.CREATE, SEND, key_ttl=TTL, key_atomic=False)
    for kind in Kind:
        yield Write(key | find, kind, key_ttl=TTL, index_lag=LAG, **numbers)
        yield Write(CONDITIONAL_WRITE, kind, **numbers)
        yield Write(FULL_STATE, kind, **numbers)
        yield Write(FULL_STATE, kind, look=True, authoritative=True, **numbers)
        yield Write(find | poll, kind, index_lag=LAG, **numbers)
        yield Write(Capability.NOTHING, kind, **numbers)
    yield Write(key | find, Kind.CREATE, SEND, key_ttl=TTL, key_atomic=False, index_lag=LAG)
    yield Write(CONDITIONAL_WRITE, Kind.CREATE, look=False, **numbers)
    yield Write(FULL_STATE, Kind.UPDATE, SEND)
    yield Write(FULL_STATE, Kind.UPDATE, SEND, look=True)
    yield Write(find, Kind.CREATE, authoritative=True, **numbers)
    yield Write(find, Kind.CREATE, SEND)
    yield Write(find, Kind.CREATE, **numbers)
    yield Write(find | poll, Kind.COMMAND, index_lag=LAG, yields_ref=True, **numbers)


DECLARED = tuple(_declarations())

# --- everything that can be seen ------------------------------------------------------------------

SAME = Candidate("41", matches=True)
OTHER = Candidate("41", matches=False)


def _sights() -> Iterator[Seen]:
    yield Lapsed()
    yield Unanswered("read timed out", kind=FailureKind.READ)
    yield Unanswered("HTTP 503", status=503, retry_after=DAY)
    yield Unanswered("HTTP 500", status=500, replayed=True)
    for kind in (None, *FailureKind):
        yield Unanswered("did not leave", nothing_left=True, kind=kind)
    for error in ErrorClass:
        yield Refused(error, "refused", status=400)
    yield Refused(ErrorClass.THROTTLED, "slow down", status=429, retry_after=DAY)
    yield Refused(ErrorClass.TRANSIENT, "locked", status=423, replayed=True)
    yield Refused(ErrorClass.INVALID, "bad", status=422, replayed=True)
    for conflict in Conflict:
        yield Refused(ErrorClass.CONFLICT, "conflict", status=409, conflict=conflict)
    for echo in Echo:
        yield Done("41", echo=echo)
    yield Done("")
    yield BodyLost(201)
    yield Accepted("job-1")
    yield Accepted("job-1", echo=Echo.OTHER)
    yield Accepted("")
    yield Looked()
    yield Looked(complete=False)
    yield Looked((SAME,))
    yield Looked((SAME,), complete=False)
    yield Looked((OTHER,))
    yield Looked((SAME, replace(SAME, remote_ref="42")))
    yield Looked((replace(SAME, version="6"),))
    yield Looked((replace(SAME, version="7"),))
    yield Looked((replace(OTHER, version="8"),))
    yield Looked((replace(SAME, version="x"),))
    yield Looked((replace(SAME, place="bin"),))
    yield Looked((replace(SAME, remote_ref=""),))
    yield Looked((replace(OTHER, running=True),))
    yield Progress(JobState.RUNNING)
    yield Progress(JobState.FINISHED, "v7", "v7", "41")
    yield Progress(JobState.FINISHED, "v6", "v7", "41")
    yield Progress(JobState.FINISHED, "v7", "v7")
    yield Progress(JobState.FAILED)
    yield Progress(JobState.UNKNOWN)


SEEN = tuple(_sights())

# --- everything that can be known -----------------------------------------------------------------

WAITS = (
    # since our bytes can last have left, since the first absence began, how long this look took
    (None, None, 0.0),
    (10.0, None, 0.0),
    (65.0, None, 1.0),
    (65.0, None, 20.0),
    (75.0, 10.0, 0.0),
    (95.0, 25.0, 0.0),
    (95.0, 25.0, 10.0),
    (95.0, 40.0, 0.0),
    (5_000.0, 4_000.0, 1.0),
)


def situations(state: State) -> Iterator[tuple[Facts, Seen]]:
    """The product, without what the state cannot depend on."""
    looking, sent = state is State.UNCERTAIN, state is State.SENT
    asked_by_the_sweep = state in (State.PENDING, State.RETRY)
    for action, seen in product(DECLARED, SEEN):
        if asked_by_the_sweep and not isinstance(seen, Lapsed | Looked):
            continue
        keyed = bool(action.capabilities & IDEMPOTENCY_KEY)
        found = seen.candidates if looking and isinstance(seen, Looked) else None
        looked, absent = found is not None, found == ()
        matter_of_time = absent or (looked and bool(action.capabilities & FULL_STATE))
        for doubt, tries, lapses, repeats, age, first, inherits, wait, jump, restored in product(
            (True,) if looking else (False, True),
            (1, 3, 8) if state in (State.RUNNING, State.SENT) else (1, 8),
            (0, 2) if isinstance(seen, Lapsed) else (0,),
            (0, 1) if absent else (0,),
            (10.0, DAY),
            (100.0, 3_200.0, None) if keyed and state is not State.ACCEPTED else (100.0,),
            (False, True) if absent else (False,),
            WAITS if matter_of_time else WAITS[:3] if sent else WAITS[1:2],
            (False, True) if absent else (False,),
            (False, True) if looked and not absent else (False,),
        ):
            since, absent_for, took = wait
            yield (
                Facts(
                    state,
                    action,
                    doubt=doubt,
                    attempts=tries,
                    repeats=repeats,
                    lapses=lapses,
                    looks=tries,
                    age=age,
                    since_last=since,
                    first_sent_ago=first,
                    absent_for=absent_for,
                    look_took=took,
                    clock_jumped=jump,
                    version=VERSION,
                    inherited=inherits,
                    restored=restored,
                ),
                seen,
            )


# --- the judge ------------------------------------------------------------------------------------


def this_attempt_may_be_executed(facts: Facts, seen: Seen) -> bool:
    """Whether the answer to this very write leaves open that it was executed (§10, two tables)."""
    if facts.state is not State.SENT:
        return False
    match seen:
        case Unanswered(nothing_left=left_nothing):
            return not left_nothing
        case Refused(error=ErrorClass.UNKNOWN):
            return True
        case Refused(conflict=Conflict.KEY_IN_PROGRESS | Conflict.KEY_REUSED):
            return True
        case Refused():
            return False
        case _:
            return True


def may_have_been_executed(facts: Facts, seen: Seen) -> bool:
    """Whether any write of this operation may have been executed, or may still be."""
    in_doubt = facts.doubt or facts.state is State.UNCERTAIN
    return in_doubt or this_attempt_may_be_executed(facts, seen)


def since_the_last_copy_left(facts: Facts, seen: Seen) -> float:
    """The least time that has certainly passed since our bytes can last have left (§9.1)."""
    if this_attempt_may_be_executed(facts, seen) and not isinstance(seen, Lapsed):
        return 0.0
    if facts.since_last is not None:
        return facts.since_last
    return facts.age if facts.state is State.UNCERTAIN else 0.0


def repeat_is_harmless(facts: Facts, seen: Seen, after: float) -> bool:
    """§8: whether the remote absorbs a repeat that goes out `after` seconds from now."""
    action = facts.action
    if action.capabilities & IDEMPOTENCY_KEY and action.key_ttl is not None:
        if facts.inherited or facts.first_sent_ago is None:
            return False
        if not action.key_atomic:
            # "a repeat waits until t_last + max_exec, so that the first copy is no longer running"
            gone_by = since_the_last_copy_left(facts, seen) + after
            if action.max_exec is None or gone_by < action.max_exec:
                return False
        answered_by = facts.first_sent_ago + after + action.max_send + (action.max_exec or 0.0)
        return answered_by < action.key_ttl * 0.9
    if action.capabilities & CONDITIONAL_WRITE:
        return True
    return bool(action.capabilities & FULL_STATE) and action.max_exec is not None


def absence_is_proven(facts: Facts, seen: Seen) -> bool:
    """§9.4, and A4: not found, by looks that no late copy and no lagging index can deceive."""
    action = facts.action
    if facts.state is not State.UNCERTAIN or not isinstance(seen, Looked):
        return False
    if not seen.complete or seen.candidates or facts.clock_jumped:
        return False
    if action.max_exec is None or facts.since_last is None:
        return False
    this_look_began = facts.since_last - facts.look_took
    if this_look_began < action.max_exec:
        return False
    if action.authoritative:
        return True
    if action.index_lag is None or facts.absent_for is None:
        return False
    first_look_began = facts.since_last - facts.absent_for
    return (
        facts.since_last >= action.max_exec + action.index_lag
        and first_look_began >= action.max_exec
        and this_look_began - first_look_began >= action.index_lag
    )


def newer_is_there(seen: Seen) -> bool:
    """The remote carries a version of ours that is higher than this operation's."""
    return isinstance(seen, Looked) and any(
        c.version.isdigit() and int(c.version) > VERSION for c in seen.candidates
    )


def complaints(facts: Facts, seen: Seen, verdict: Verdict) -> Iterator[str]:
    """What the protocol has against a verdict; nothing when it is a good one."""
    before, after = facts.state, verdict.state
    executed = may_have_been_executed(facts, seen)
    proven = absence_is_proven(facts, seen)
    actor = (
        Actor.SWEEP
        if isinstance(seen, Lapsed) or before in (State.PENDING, State.RETRY)
        else Actor.WORKER
    )
    # §5
    if after is not before and not allowed(before, after, actor):
        if not (before is State.RETRY and allowed(before, after, Actor.WORKER)):
            yield f"no move of the protocol for the {actor}"
    # promise 2
    if after in (State.RETRY, State.PENDING) and executed and not proven:
        if not repeat_is_harmless(facts, seen, verdict.delay):
            yield "a blind repeat"
        if not verdict.doubt:
            yield "a doubt is forgotten"
    if (
        before is State.UNCERTAIN
        and after is State.RETRY
        and facts.action.max_exec is None
        and facts.action.capabilities & FULL_STATE
    ):
        yield "b′ without max_exec repeats by itself"
    # doubt
    if executed and not verdict.doubt and not proven:
        answered = isinstance(seen, Done | Accepted | Progress) or after is State.CONFIRMED
        found = after in (State.CONFIRMED, State.ACCEPTED) or newer_is_there(seen)
        if not answered and not found:
            yield "a doubt is forgotten"
    if after is State.UNCERTAIN and not verdict.doubt:
        yield "uncertain without doubt"
    if after is State.FAILED and (executed or verdict.doubt) and before is not State.ACCEPTED:
        yield "failed, and it may have been executed"
    if after is State.FAILED and facts.doubt:
        yield "failed in doubt"
    if after is State.DISCARDED and executed and not newer_is_there(seen):
        yield "discarded, and it may have been executed"
    # confirmation needs proof
    if after is State.CONFIRMED and before is not State.CONFIRMED:
        yield from _confirmed(facts, seen, verdict)
    # everything is bounded
    if not (math.isfinite(verdict.delay) and 0.0 <= verdict.delay <= DAY):
        yield f"a delay of {verdict.delay}"
    if isinstance(seen, Lapsed) and before in (
        State.RUNNING,
        State.SENT,
        State.UNCERTAIN,
        State.ACCEPTED,
    ):
        if not verdict.adds_lapse:
            yield "a lapse that is not counted"
        if facts.lapses >= 2 and after is not State.REVIEW:
            yield "a third lapse in a row without a person"
    tried = before in (State.RUNNING, State.SENT, State.UNCERTAIN)
    if tried and after in (State.RETRY, State.PENDING) and facts.attempts >= 8:
        if verdict.costs_attempt and not isinstance(seen, Lapsed):
            yield "a ninth attempt"
    paused = verdict.halt is not Halt.NO or verdict.outcome is Outcome.GIVEN_BACK
    if facts.age >= DAY and after is before and before in MOVING - {State.PENDING} and not paused:
        if before in (State.UNCERTAIN, State.ACCEPTED) or before is State.RETRY:
            yield "it waits for more than a day"
    # words
    if not verdict.code or not verdict.text.strip():
        yield "no reason a person can read"
    if "None" in verdict.text:
        yield "a reason nobody can read"


def _confirmed(facts: Facts, seen: Seen, verdict: Verdict) -> Iterator[str]:
    kind = facts.action.kind
    if facts.action.creates and kind is not Kind.DELETE:
        if verdict.done is None or not verdict.done.remote_ref:
            yield "confirmed without the remote id"
    match facts.state, seen:
        case State.SENT, Done(echo=echo) if echo is not Echo.OTHER:
            return
        case State.SENT, Refused(error=ErrorClass.MISSING) if kind is Kind.DELETE:
            return
        case State.ACCEPTED, Progress(job=JobState.FINISHED, finished_for=done_for, ours=ours):
            if done_for != ours:
                yield "confirmed for another version"
            return
        case State.UNCERTAIN, Looked(complete=True, candidates=found):
            if kind is Kind.DELETE and (not found or all(c.place == "bin" for c in found)):
                if facts.inherited and not found and not absence_is_proven(facts, seen):
                    yield "gone, which may only mean: not there yet"
                return
            if len(found) != 1 or not found[0].matches or found[0].place:
                yield "confirmed by an object that is not as we meant it"
            elif found[0].version not in ("", str(VERSION)):
                yield "confirmed by another version"
            return
    yield "confirmed without proof"


def judge(state: State) -> Counter[str]:
    """Judge every situation of a state; how often each kind of thing happened."""
    met: Counter[str] = Counter()
    for facts, seen in situations(state):
        # Chance only sets how long to wait: its ends, and its middle.
        verdict = decide(facts, seen, LIMITS, {1: 0.5, 3: 0.0, 8: 0.999}[facts.attempts])
        against = next(complaints(facts, seen, verdict), "")
        if against:
            raise AssertionError(
                f"{against}\n  known: {facts}\n  seen: {seen}\n  verdict: {verdict}"
            )
        met["all"] += 1
        met[verdict.state] += 1
        if verdict.state is State.RETRY and may_have_been_executed(facts, seen):
            met[f"repeated: {facts.action.safety}"] += 1
            met["repeated after a proven absence"] += absence_is_proven(facts, seen)
    return met


@pytest.mark.parametrize("state", sorted(MOVING))
def test_the_promise_holds_for_every_combination(state: State) -> None:
    met = judge(state)
    # A check that never meets its case proves nothing.
    assert met["all"] > 3_000
    wanted: dict[State, Iterable[str]] = {
        State.PENDING: ["pending"],
        State.RETRY: ["retry", "uncertain", "review", "repeated: a", "repeated: b′"],
        State.RUNNING: ["pending", "retry", "failed", "discarded", "review", "uncertain"],
        State.SENT: [
            "confirmed",
            "accepted",
            "retry",
            "uncertain",
            "failed",
            "review",
            "repeated: a",
        ],
        State.UNCERTAIN: [
            "confirmed",
            "accepted",
            "discarded",
            "retry",
            "uncertain",
            "review",
            *(f"repeated: {name}" for name in ("a+look", "b", "b′", "c")),
            "repeated after a proven absence",
        ],
        State.ACCEPTED: ["accepted", "confirmed", "failed", "review"],
    }
    for case in wanted[state]:
        assert met[case], f"{state}: never met {case!r}"


def test_what_rests_is_left_alone() -> None:
    for state in set(State) - MOVING:
        for seen in SEEN:
            assert decide(Facts(state, DECLARED[0]), seen, LIMITS).state is state


# --- planted weaknesses ---------------------------------------------------------------------------


def _without_doubt(function: Callable[..., Verdict]) -> Callable[..., Verdict]:
    return lambda given, *rest, **more: function(
        replace(given, facts=replace(given.facts, doubt=False)), *rest, **more
    )


def _to(state: State) -> Callable[..., Verdict]:
    return lambda given, text, *rest, **more: Verdict(state, "planted", text)


def _failed_when_used_up(given: Given, *rest: Any, **more: Any) -> Verdict:
    verdict = _UNKNOWN(given, *rest, **more)
    used_up = given.facts.attempts >= 8
    return replace(verdict, state=State.FAILED, doubt=False) if used_up else verdict


_UNKNOWN = doubts.unknown
WEAKNESSES: dict[str, tuple[State, str, Any]] = {
    "W5: not found is trusted at once": (
        State.UNCERTAIN,
        "hub.looks.absence_trusted",
        lambda facts: True,
    ),
    "W6: a time-out is a failure": (State.SENT, "hub.sends.unknown", _to(State.FAILED)),
    "W6: a time-out is tried again": (State.SENT, "hub.sends.unknown", _to(State.RETRY)),
    "W2: a lapsed sent goes back": (
        State.SENT,
        "hub.policy.after_the_marker",
        sends.before_the_marker,
    ),
    "W26: a lapsed repeat forgets its doubt": (
        State.RUNNING,
        "hub.policy.before_the_marker",
        _without_doubt(sends.before_the_marker),
    ),
    "W27: the life of a key is not checked": (
        State.RETRY,
        "hub.policy.never_blind",
        lambda facts, verdict: verdict,
    ),
    "W28: a refused repeat is final": (
        State.SENT,
        "hub.sends._refused",
        _without_doubt(sends._refused),
    ),
    "the first absence counts from any moment": (
        State.UNCERTAIN,
        "hub.looks.absence_trusted",
        lambda facts: facts.absent_for is not None and facts.absent_for >= LAG,
    ),
    "found is found, whatever it looks like": (
        State.UNCERTAIN,
        "hub.looks._one_found",
        lambda given, candidate: Verdict(
            State.CONFIRMED, "planted", "planted", done=Done(candidate.remote_ref)
        ),
    ),
    "W22: unknown outcomes use up the budget, then it failed": (
        State.SENT,
        "hub.sends.unknown",
        _failed_when_used_up,
    ),
    "attempts do not end": (State.SENT, "hub.sends.exhausted", lambda given: False),
}


@pytest.mark.parametrize("name", WEAKNESSES)
def test_the_judge_sees_a_planted_weakness(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, function, planted = WEAKNESSES[name]
    monkeypatch.setattr(function, planted)
    with pytest.raises(AssertionError, match="known:"):
        judge(state)
