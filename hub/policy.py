"""The judgement: what follows from what was seen. One pure function, total over every combination.

`decide(facts, seen)` answers for every state, declaration and observation with a `Verdict`. The
promise it keeps (protocol §1.2): a write that may have left is never sent again unless a
declaration makes the repeat harmless, a trusted look found nothing, or a person decided. Nothing
here or below reads a clock, a database or a network; chance comes in as `roll`.

This is the front door. Here stand the moves of protocol §5 that the sweep asks about, out of
`pending` and `retry` (rows 19 and 23). The others stand where they are asked: `hub.sends` (rows 3
to 12), `hub.looks` (13 to 16) and `hub.polls` (13, 16, 17); doubt, its inheritance (22) and the
last word on the promise in `hub.doubts`. What an answer says by itself is in `hub.answers`, how
long to wait in `hub.waits`, the words of a verdict in `hub.verdicts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hub.answers import REFUSED_STATUSES, classify
from hub.contract import FIND_BY_EXTERNAL_ID, IDEMPOTENCY_KEY, Looked, Seen, Write
from hub.doubts import inherit, never_blind
from hub.looks import looking
from hub.polls import polling
from hub.sends import after_the_marker, before_the_marker
from hub.states import CLAIMABLE, Outcome, State
from hub.verdicts import (
    Advice,
    Breath,
    Facts,
    Given,
    Halt,
    Limits,
    Verdict,
    retry_unless_in_doubt,
    review,
    uncertain,
)
from hub.waits import backoff, exhausted, hold_for, look_delay, repeat_harmless

__all__ = [
    "REFUSED_STATUSES",
    "Advice",
    "Breath",
    "Facts",
    "Halt",
    "Limits",
    "Verdict",
    "backoff",
    "classify",
    "decide",
    "degraded",
    "hold_for",
    "inherit",
    "look_delay",
]


def decide(facts: Facts, seen: Seen, limits: Limits, roll: float = 0.5) -> Verdict:
    """What follows from `seen`. Total: every combination has an answer; an impossible one goes to a
    person."""
    verdict = _judge(Given(facts, limits, roll), seen)
    if verdict.state in CLAIMABLE and verdict.doubt:
        return never_blind(facts, verdict)
    return verdict


def _judge(given: Given, seen: Seen) -> Verdict:
    match given.facts.state:
        case State.RUNNING:
            return before_the_marker(given, seen)
        case State.SENT:
            return after_the_marker(given, seen)
        case State.UNCERTAIN:
            return looking(given, seen)
        case State.ACCEPTED:
            return polling(given, seen)
        case State.RETRY | State.PENDING:
            return _waiting(given, seen)
        case state:
            text = "Nothing follows: the operation is at rest."
            return Verdict(state, "at_rest", text, doubt=given.facts.doubt)


def _waiting(given: Given, seen: Seen) -> Verdict:
    """States `pending` and `retry`, asked by the sweep: is it still right to wait? (rows 19, 23)"""
    facts, action = given.facts, given.facts.action
    if facts.state is State.RETRY:
        if isinstance(seen, Looked) and seen.candidates:
            return uncertain(
                "named_by_late_result",
                "A late result names an object; it is looked at before anything is sent.",
                Outcome.LOOKED,
                hold=hold_for(action, given.limits),
            )
        look_instead = facts.doubt and action.can_look and not repeat_harmless(facts)
        if exhausted(given) and not look_instead:
            return review(
                facts,
                "exhausted",
                "Attempts or time are used up.",
                Outcome.GIVEN_BACK,
                advice=retry_unless_in_doubt(facts),
            )
    # Whether it may still be sent is said by the last word of `decide` (dead keys: row 23).
    return Verdict(
        facts.state, "waiting", "It waits its turn.", Outcome.GIVEN_BACK, doubt=facts.doubt
    )


def degraded(action: Write, lost: Mapping[str, Any] | None) -> Write:
    """`action` without what it turned out not to have ("key", "find")."""
    if not lost:
        return action
    taken = {"key": IDEMPOTENCY_KEY, "find": FIND_BY_EXTERNAL_ID}.get(str(lost.get("lost")))
    return action.without(taken) if taken is not None else action
