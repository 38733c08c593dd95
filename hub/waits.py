"""How long to wait, what waiting proves, and how often is often enough.

Holds protocol §8 (when a repeat adds nothing), §9.4 and §9.6 (when "not there" may be trusted, and
when to look again), the budgets of §11 and the hold of §12. Every figure is seconds, worked out
from what a declaration states and what is known; there is no clock here.
"""

from __future__ import annotations

from hub.contract import Kind, SafetyClass, Write
from hub.states import State
from hub.verdicts import Facts, Given, Limits

# --- the next try, and the last (protocol §11) ----------------------------------------------------


def backoff(attempts: int, limits: Limits, roll: float) -> float:
    """Seconds to the next try: full jitter over a doubling bound (protocol §11). `roll` is in [0,
    1)."""
    top = min(limits.retry_cap, limits.retry_base * 2.0 ** min(attempts, 30))
    return limits.retry_base + (max(top, limits.retry_base) - limits.retry_base) * roll


def next_try(given: Given, not_before: float | None = None) -> float:
    """Seconds to the next try, and no earlier than the remote asked for."""
    return max(backoff(given.facts.attempts, given.limits, given.roll), not_before or 0.0)


def exhausted(given: Given) -> bool:
    """Whether attempts or age are used up (protocol §11)."""
    facts, limits = given.facts, given.limits
    return facts.attempts >= limits.max_attempts or facts.age >= limits.max_age


def poisoned(given: Given) -> bool:
    """Whether the worker that was just lost over this was one too many (protocol §11)."""
    return given.facts.lapses + 1 >= given.limits.max_lapses


# --- looks (protocol §9) --------------------------------------------------------------------------


def scheduled(facts: Facts, limits: Limits) -> float:
    """The step of the schedule that the next look or poll stands at (§9.6)."""
    steps = limits.look_schedule
    return steps[min(facts.looks, len(steps) - 1)]


def look_delay(facts: Facts, limits: Limits, roll: float) -> float:
    """Seconds to the next look: the schedule, but never later than absence can first be trusted
    (§9.6)."""
    step = scheduled(facts, limits)
    if facts.looks >= len(limits.look_schedule):
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


def first_absence(facts: Facts) -> bool:
    """Whether the look being judged may be the first of the two complete negative ones (§9.4)."""
    action = facts.action
    if action.max_exec is None or facts.since_last is None:
        return False
    if facts.since_last - facts.look_took < action.max_exec:
        return False
    # One that began too early by the numbers of today (max_exec was raised since) does not count.
    return facts.absent_for is None or facts.since_last - facts.absent_for < action.max_exec


# --- a copy that may be under way (protocol §8, §12) ----------------------------------------------


def hold_for(action: Write, limits: Limits) -> float | None:
    """How long after `t_last` a late copy could still harm the stream's next operation (§12)."""
    harmful = action.safety in (SafetyClass.B_PRIME, SafetyClass.D) or (
        action.safety is SafetyClass.B and action.kind is Kind.CREATE
    )
    if not harmful:
        return None
    return action.max_exec if action.max_exec is not None else limits.uncertain_max


def settle_left(facts: Facts, *, just_left: bool = False) -> float:
    """Seconds until the copy that may be under way can no longer be executed."""
    if facts.action.max_exec is None:
        return 0.0
    since = 0.0
    if not just_left:
        waited = facts.age if facts.state is State.UNCERTAIN else 0.0  # whatever left, left before
        since = waited if facts.since_last is None else facts.since_last
    return max(0.0, facts.action.max_exec - since)


def copy_left(facts: Facts, *, just_left: bool = False) -> float:
    """Seconds a repeat by key waits: none beside an atomic key, else until no copy runs (§8)."""
    # Not atomic: a repeat beside a first copy that still runs would run twice (F54).
    return 0.0 if facts.action.key_atomic else settle_left(facts, just_left=just_left)


def by_key(action: Write) -> bool:
    """Whether the remote absorbs a repeat by its key."""
    return action.safety in (SafetyClass.A, SafetyClass.A_LOOK)


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
