"""Doubt: what may follow when a write may have been executed.

Holds protocol §8 and the second table of §10 (an unknown outcome, by the class of its action), row
22 of §5 (an operation that starts in doubt; §12, §17), and the last word on promise 2 (§1.2): what
may have left goes out again only where that is harmless.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from hub.contract import Kind, SafetyClass
from hub.states import ErrorClass, Outcome, State
from hub.verdicts import (
    Advice,
    Breath,
    Facts,
    Given,
    Limits,
    Verdict,
    advice_in_doubt,
    retry,
    review,
    uncertain,
)
from hub.waits import (
    by_key,
    copy_left,
    exhausted,
    hold_for,
    look_delay,
    next_try,
    repeat_harmless,
    settle_left,
)


def never_blind(facts: Facts, verdict: Verdict) -> Verdict:
    """Promise 2 has the last word: what may have left goes out again only where that is harmless.

    It speaks up where a wait outlives the key, or where the action lost its class meanwhile (F53).
    """
    action, delay = facts.action, verdict.delay
    keyed = by_key(action)
    if keyed:
        delay = max(delay, copy_left(facts))
    if repeat_harmless(facts, delay):
        return replace(verdict, delay=delay)
    if keyed:
        code, why = "key_used_up", "Its key can no longer be relied on"
    else:
        code = "no_safe_repeat"
        why = "It may have been executed, and this action offers no safe repeat"
    text = f"{verdict.text} {why}"
    if action.can_look:
        text += "; what is there is looked up instead."
        return replace(verdict, state=State.UNCERTAIN, code=code, text=text, advice=Advice.NONE)
    return replace(
        verdict,
        state=State.REVIEW,
        code=code,
        text=f"{text}, and nothing can be looked up: a person decides.",
        delay=0.0,
        advice=advice_in_doubt(facts),
        assumption="A2" if keyed else "",
    )


class _Signs(TypedDict):
    """What is on record of an unknown outcome, whatever follows from it."""

    hold: float | None
    breath: Breath
    adds_lapse: bool
    status: int | None
    error: ErrorClass | None


def unknown(
    given: Given,
    text: str,
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
    facts, action, outcome = given.facts, given.facts.action, Outcome.UNKNOWN
    signs: _Signs = {
        "hold": hold_for(action, given.limits),
        "breath": breath,
        "adds_lapse": lapsed,
        "status": status,
        "error": error,
    }
    just_left = not lapsed
    match action.safety:
        case SafetyClass.A:
            pause = max(next_try(given, not_before), copy_left(facts, just_left=just_left))
            if exhausted(given) or not facts.key_alive(pause):
                text += " Its key can no longer be relied on, and nothing can be looked up."
                return review(
                    facts, "key_used_up", text, outcome, doubt=True, assumption="A2", **signs
                )
            text += " It is repeated with the same key."
            return retry(facts, code, text, outcome, doubt=True, delay=pause, **signs)
        case SafetyClass.D:
            text += " This action offers nothing to find out by, so a person decides."
            return review(facts, code, text, outcome, doubt=True, **signs)
        case _:
            text += " Whether it happened is found out next."
            pause = max(_first_look(given, just_left=just_left), not_before or 0.0)
            return uncertain(code, text, outcome, delay=pause, **signs)


def _first_look(given: Given, *, just_left: bool) -> float:
    """Seconds until it is looked up; where nothing can be, until it is repeated instead."""
    facts, action = given.facts, given.facts.action
    if action.can_look:
        since = 0.0 if just_left else facts.since_last
        never_looked = replace(facts, looks=0, absent_for=None, since_last=since)
        return look_delay(never_looked, given.limits, given.roll)
    if action.safety is SafetyClass.B:
        return next_try(given)
    return max(settle_left(facts, just_left=just_left), next_try(given))


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
    sendable = facts.state not in (State.UNCERTAIN, State.ACCEPTED)  # those look first (row 22)
    read_first = action.kind in (Kind.UPDATE, Kind.DELETE)
    code, outcome = "inherited_doubt", Outcome.UNKNOWN
    if own_key and by_key(action) and sendable and not read_first and facts.key_alive():
        return retry(facts, code, f"{why} It is repeated with its key.", outcome, doubt=True)
    if action.can_look:
        text = f"{why} What is there is looked up first."
        return uncertain(code, text, outcome, hold=hold_for(action, limits))
    text = f"{why} This action offers nothing to find out by, so a person decides."
    return review(facts, code, text, outcome, doubt=True)
