"""The judgement of a look: whether a write happened whose fate is unknown.

Holds the moves of protocol §5 that leave `uncertain` or keep it (rows 13 to 16), and §9: found
counts at any time (§9.2), a failed look is no answer (§9.3), "not there" counts when it may be
trusted (§9.4), and after `uncertain_max` a person decides (§9.5). When to look again, and when
absence is trusted, is worked out in `hub.waits`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from hub.answers import breath_of, halt_of, throttle_of, told
from hub.contract import (
    Candidate,
    Done,
    FailureKind,
    Kind,
    Lapsed,
    Looked,
    Refused,
    SafetyClass,
    Seen,
    Unanswered,
    Write,
)
from hub.states import ErrorClass, Outcome, State
from hub.verdicts import (
    Advice,
    Breath,
    Facts,
    Given,
    Halt,
    More,
    Verdict,
    accepted,
    confirmed,
    poison,
    retry,
    review,
    stale,
    uncertain,
)
from hub.waits import (
    absence_trusted,
    by_key,
    copy_left,
    exhausted,
    first_absence,
    look_delay,
    poisoned,
    settle_left,
)


def looking(given: Given, seen: Seen) -> Verdict:
    """State `uncertain`: find out whether it happened (rows 13-16)."""
    match seen:
        case Looked(complete=True):
            return _looked(given, seen)
        case Looked():
            return _keep_looking(given, f"The look was not complete. {seen.text}".strip())
        case Lapsed() if poisoned(given):
            return poison(given.facts, "looked", Outcome.LOOKED, doubt=True)
        case Lapsed():
            return _keep_looking(given, "The worker was lost while it looked.", lapsed=True)
        case Refused(error=ErrorClass.CREDENTIAL):
            verdict = _keep_looking(given, f"The look was refused: our credential. {seen.text}")
            return replace(verdict, halt=Halt.CREDENTIAL, **told(seen))
        case Refused():
            verdict = _keep_looking(given, f"The look was refused: {seen.text}")
            return replace(
                verdict,
                delay=max(verdict.delay, seen.retry_after or 0.0),
                throttle=throttle_of(seen, given.limits),
                **told(seen),
            )
        case Unanswered(kind=FailureKind.ABORTED):
            return uncertain("look_given_back", "The look was given back.", Outcome.GIVEN_BACK)
        case Unanswered():
            verdict = _keep_looking(given, f"The look failed: {seen.text}")
            halt = halt_of(seen.kind)
            return replace(
                verdict,
                delay=max(verdict.delay, seen.retry_after or 0.0),
                halt=halt,
                breath=breath_of(seen) if halt is Halt.NO else Breath.NEUTRAL,
                status=seen.status,
            )
        case _:
            return _keep_looking(given, "The look brought no usable answer.")


def _keep_looking(given: Given, text: str, *, lapsed: bool = False) -> Verdict:
    """A failed look is no answer (§9.3); after `uncertain_max` a person takes over (§9.5)."""
    facts, limits = given.facts, given.limits
    if facts.age >= limits.uncertain_max:
        return review(
            facts,
            "undecided",
            f"{text} It could not be found out in time.",
            Outcome.LOOKED,
            doubt=True,
            assumption="" if facts.action.max_exec is not None else "A3",
            adds_lapse=lapsed,
        )
    delay = max(look_delay(facts, limits, given.roll), limits.retry_base * 0.2)
    return uncertain(
        "looking", text, Outcome.LOOKED, delay=0.0 if lapsed else delay, adds_lapse=lapsed
    )


# --- what a complete look shows -------------------------------------------------------------------


def _looked(given: Given, seen: Looked) -> Verdict:
    facts, found = given.facts, seen.candidates
    if not found:
        return _nothing_found(given)
    if len(found) == 1:
        return _one_found(given, found[0])
    return _ask(
        facts,
        "several_found",
        f"{len(found)} objects carry our reference: one of them is a duplicate.",
        advice=Advice.LINK,
        candidates=found,
    )


def _ask(
    facts: Facts,
    code: str,
    text: str,
    *,
    doubt: bool = True,
    advice: Advice = Advice.LOOK_AGAIN,
    **more: Unpack[More],
) -> Verdict:
    """The look came back well, and what it shows is for a person to settle."""
    more["breath"] = Breath.GOOD
    return review(facts, code, text, Outcome.LOOKED, doubt=doubt, advice=advice, **more)


def _shown(code: str, text: str, done: Done | None = None) -> Verdict:
    """What the look shows is what was wanted."""
    done = replace(done, note=text) if done is not None else Done(note=text)
    return confirmed(code, text, Outcome.LOOKED, done)


def _repeat(
    facts: Facts, code: str, text: str, *, doubt: bool = True, **more: Unpack[More]
) -> Verdict:
    """The look came back well, and it may be sent again."""
    more["breath"] = Breath.GOOD
    return retry(facts, code, text, Outcome.LOOKED, doubt=doubt, **more)


def _one_found(given: Given, candidate: Candidate) -> Verdict:
    """Found counts at any time (§9.2)."""
    facts, action = given.facts, given.facts.action
    if candidate.running:
        return accepted(
            "job_found",
            "Our job was found at work over there.",
            Outcome.LOOKED,
            job=candidate.remote_ref,
            delay=1.0,
            breath=Breath.GOOD,
        )
    if not candidate.remote_ref:
        return _keep_looking(given, "The look names an object without an id.")
    if candidate.place:
        return _put_away(facts, candidate)
    by_id = _by_id(action)
    if by_id and facts.restored and not candidate.matches and not facts.as_last_seen:
        return _ask(
            facts,
            "changed_meanwhile",
            "After a restore the object is neither as last seen nor as we mean it.",
            candidates=(candidate,),
        )
    if by_id and action.kind is Kind.DELETE:
        return _harmless_repeat(given, "It is still there; deleting it again adds nothing.")
    theirs = _number(candidate.version)
    if by_id and action.is_full_state and theirs is not None and theirs > facts.version:
        return stale(
            f"Version {theirs} is already there; version {facts.version} is no longer wanted.",
            Outcome.LOOKED,
            breath=Breath.GOOD,
        )
    same_version = not candidate.version or theirs == facts.version
    if candidate.matches and same_version:
        values = candidate.values or candidate.fields
        done = Done(candidate.remote_ref, candidate.remote_version, values)
        return _shown("found", "A look found it, equal in every field we own.", done)
    if by_id:
        return _harmless_repeat(
            given, "The object is not yet as we mean it; sending it again adds nothing."
        )
    return _ask(
        facts,
        "found_different",
        "One object carries our reference, but it is not as we meant it.",
        advice=Advice.LINK,
        candidates=(candidate,),
    )


def _put_away(facts: Facts, candidate: Candidate) -> Verdict:
    """In a bin or archive is found (§9.2); what a person put there is not for the machine to
    undo."""
    if facts.action.kind is Kind.DELETE and candidate.place == "bin":
        return _shown("gone", "A look shows it in the bin.")
    return _ask(
        facts,
        "found_put_away",
        f"It was found, but it lies in the {candidate.place} over there.",
        advice=Advice.LINK,
        candidates=(candidate,),
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


def _harmless_repeat(given: Given, text: str) -> Verdict:
    """Not (yet) as we mean it, where a repeat may be harmless.

    b′ waits until a late copy is spent (§12); a key that is not atomic, until no copy runs (§8).
    """
    facts, action = given.facts, given.facts.action
    wait = 0.0
    if action.safety is SafetyClass.A_LOOK:
        wait = copy_left(facts)
        if not facts.key_alive(wait):
            text = f"{text} Its key can no longer be relied on."
            return _ask(facts, "key_used_up", text, assumption="A2")
    if action.safety is SafetyClass.B_PRIME and action.max_exec is None:
        return _keep_looking(given, f"{text} How long a late copy may take is not stated (A3).")
    if exhausted(given):
        return _ask(facts, "exhausted", f"{text} No attempts are left.", advice=Advice.RETRY)
    if action.safety is SafetyClass.B_PRIME:
        wait = settle_left(facts)
        if wait > 0 and action.can_look:
            verdict = _keep_looking(given, f"{text} A late copy may still arrive.")
            if verdict.state is State.UNCERTAIN:
                return replace(verdict, breath=Breath.GOOD)
            return verdict
    return _repeat(facts, "repeat_harmless", text, delay=wait)


# --- not there ------------------------------------------------------------------------------------


def _nothing_found(given: Given) -> Verdict:
    """What "not there" means goes by what was to be done and by its class."""
    facts, action = given.facts, given.facts.action
    by_id = action.safety in (SafetyClass.B, SafetyClass.B_PRIME)
    if action.kind is Kind.DELETE and action.safety is not SafetyClass.C:
        if facts.inherited and not absence_trusted(facts):
            # "Gone" may only mean: the create this doubt is about has not arrived yet.
            return _not_yet(given)
        return _shown("gone", "A look shows that it is gone.")
    if action.kind is Kind.UPDATE and by_id:
        text = "The object to change is not there any more."
        return _ask(facts, "vanished", text, advice=Advice.DISCARD)
    if action.safety is SafetyClass.B:
        return _harmless_repeat(given, "Not there; the condition makes a repeat harmless.")
    if action.safety is SafetyClass.B_PRIME:
        return _harmless_repeat(given, "Not there; a repeat adds nothing.")
    if by_key(action):
        wait = copy_left(facts)
        if facts.key_alive(wait) and not exhausted(given):
            text = "Not found (yet); it is repeated with the same key."
            return _repeat(facts, "repeat_by_key", text, delay=wait)
    return _trusted(given) if absence_trusted(facts) else _not_yet(given)


def _trusted(given: Given) -> Verdict:
    """It did not happen (§9.4): it is sent again, once (§9.5), while there are attempts."""
    facts, limits = given.facts, given.limits
    if facts.attempts >= limits.max_attempts:
        return _ask(
            facts,
            "exhausted",
            "It did not happen, and no attempts are left.",
            doubt=False,
            advice=Advice.RETRY,
            assumption="A3",
        )
    if facts.repeats >= limits.max_repeats:
        return _ask(
            facts,
            "absent_again",
            "It was sent again after a first absence, and is again not there.",
            doubt=False,
            advice=Advice.RETRY,
            assumption="A3",
        )
    return _repeat(
        facts,
        "absent",
        "Looked for after every wait that was declared, and not there: it did not happen.",
        doubt=False,
        adds_repeat=True,
        assumption="A3",
    )


def _not_yet(given: Given) -> Verdict:
    """Not there, but too early to trust that; it may be the first of the two looks that count."""
    facts = given.facts
    first = first_absence(facts)
    if first:
        given = replace(given, facts=replace(facts, absent_for=facts.look_took))
    verdict = _keep_looking(given, "Not found yet; it is too early to conclude anything.")
    return replace(verdict, absent=first, breath=Breath.GOOD)
