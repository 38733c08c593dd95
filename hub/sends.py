"""The judgement of a send: what follows from what was seen before its marker, and after it.

Holds the moves of protocol §5 that leave `running` (rows 3, 5, 6 and, where a last look found
something, 23) and `sent` (rows 7 to 12): what each outcome of §10 leads to, and of §11 what costs
an attempt and when attempts are enough. What may follow an unknown outcome stands in `hub.doubts`.
"""

from __future__ import annotations

from typing import Unpack

from hub.answers import answered, breath_of, halt_of, throttle_of, told
from hub.contract import (
    IDEMPOTENCY_KEY,
    Accepted,
    BodyLost,
    Candidate,
    Conflict,
    Done,
    Echo,
    FailureKind,
    Kind,
    Lapsed,
    Looked,
    Refused,
    Seen,
    Unanswered,
)
from hub.doubts import unknown
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
    failed,
    poison,
    retry,
    retry_unless_in_doubt,
    review,
    stale,
    uncertain,
)
from hub.waits import (
    copy_left,
    exhausted,
    hold_for,
    next_try,
    poisoned,
)

FORESEEN_BY_NOBODY = 3
"""Tries at what raises something no row of protocol §10 names, before a person sees it."""

_FAULT_CODES = {
    FailureKind.ADDRESS: "configuration",
    FailureKind.LOCAL: "our_defect",
    FailureKind.OTHER: "our_defect",
    FailureKind.CERTIFICATE: "certificate",
    FailureKind.PROXY_AUTH: "proxy_login",
}
"""What a failure to send is called that is no matter of the network."""


# --- before the marker ----------------------------------------------------------------------------


def before_the_marker(given: Given, seen: Seen) -> Verdict:
    """State `running`: nothing has left under this token (rows 3, 5, 6, 23)."""
    facts = given.facts
    match seen:
        case Lapsed() if poisoned(given):
            advice = retry_unless_in_doubt(facts)
            return poison(facts, "worked on this", Outcome.GIVEN_BACK, advice=advice)
        case Lapsed():
            text = "The worker was lost before anything left; it goes back to the queue."
            return _back(facts, "lapsed", text, Outcome.GIVEN_BACK, adds_lapse=True)
        case Looked(candidates=found) if found:
            text = "A last look before the repeat found something; it is looked at first."
            return uncertain("found_before_repeat", text, Outcome.LOOKED)
        case Unanswered(kind=FailureKind.ABORTED):
            text = "Given back before anything left."
            return _back(facts, "given_back", text, Outcome.GIVEN_BACK, costs_attempt=False)
        case Unanswered(kind=FailureKind.ADDRESS | FailureKind.LOCAL as kind):
            return _fault_of_ours(facts, seen, kind)
        case Unanswered(kind=FailureKind.CERTIFICATE | FailureKind.PROXY_AUTH as kind):
            return _shut_out(given, seen.text, kind)
        case Unanswered(kind=FailureKind.OTHER) if facts.attempts >= FORESEEN_BY_NOBODY:
            return _seen_too_often(facts, seen.text)
        case Unanswered(kind=FailureKind.OTHER):
            return _once_more(given, "our_defect", seen.text)
        case Unanswered():
            return _once_more(
                given,
                "read_failed",
                seen.text,
                not_before=seen.retry_after,
                breath=Breath.BAD,
                status=seen.status,
            )
        case Refused():
            return _read_refused(given, seen)
        case _:
            return _once_more(given, "read_failed", "Preparing it brought no usable answer.")


def _once_more(
    given: Given, code: str, text: str, not_before: float | None = None, **more: Unpack[More]
) -> Verdict:
    """A read that failed cost an attempt; it is prepared again while there are any."""
    if exhausted(given):
        text = f"{text} No attempts are left."
        return review(given.facts, "exhausted", text, Outcome.NOTHING_LEFT, advice=Advice.RETRY)
    more["delay"] = next_try(given, not_before)
    return _back(given.facts, code, text, Outcome.NOTHING_LEFT, **more)


def _read_refused(given: Given, seen: Refused) -> Verdict:
    """The remote refuses a read that the write needs."""
    facts = given.facts
    again = retry_unless_in_doubt(facts)
    match seen.error:
        case ErrorClass.CREDENTIAL:
            return _login_refused(given, seen)
        case ErrorClass.TRANSIENT | ErrorClass.THROTTLED:
            return _refused_for_now(given, seen, seen.text)
        case ErrorClass.CONFLICT if seen.conflict is Conflict.VERSION:
            if facts.doubt:
                return review(facts, "newer_there", seen.text, Outcome.CONFLICT, error=seen.error)
            text = f"A newer version is already there: {seen.text}"
            return stale(text, Outcome.CONFLICT, **told(seen))
        case ErrorClass.MISSING:
            text = f"The object is not there any more: {seen.text}"
            advice = Advice.DISCARD
            return review(facts, "vanished", text, Outcome.CONFLICT, advice=advice, **told(seen))
        case ErrorClass.DENIED:
            return review(facts, "denied", seen.text, Outcome.DENIED, advice=again, **told(seen))
        case ErrorClass.CONFLICT:
            return review(
                facts, "conflict", seen.text, Outcome.CONFLICT, advice=again, **told(seen)
            )
        case ErrorClass.UNKNOWN:
            return _once_more(given, "read_failed", seen.text, breath=Breath.BAD)
        case _:
            if facts.doubt:
                return review(facts, "refused", seen.text, Outcome.REFUSED, error=seen.error)
            return failed("refused", seen.text, Outcome.REFUSED, **told(seen))


# --- at either side of it -------------------------------------------------------------------------


def _back(facts: Facts, code: str, text: str, outcome: Outcome, **more: Unpack[More]) -> Verdict:
    """It waits again; what never had a marker, and is not in doubt, as if it had not been taken."""
    untouched = facts.state is State.RUNNING and not facts.doubt
    state = State.PENDING if untouched else State.RETRY
    return Verdict(state, code, text, outcome, doubt=facts.doubt, **more)


def _refused_for_now(given: Given, seen: Refused, text: str) -> Verdict:
    """T: it costs time, and no attempt."""
    return _back(
        given.facts,
        "throttled" if seen.error is ErrorClass.THROTTLED else "busy",
        text,
        Outcome.REFUSED_FOR_NOW,
        delay=next_try(given, seen.retry_after),
        costs_attempt=False,
        throttle=throttle_of(seen, given.limits),
        **answered(seen),
    )


def _login_refused(given: Given, seen: Refused) -> Verdict:
    """D, of our credential: it costs nothing and stops the connection."""
    return _back(
        given.facts,
        "credential",
        f"The remote refuses our credential: {seen.text}",
        Outcome.DENIED,
        delay=next_try(given),
        costs_attempt=False,
        halt=Halt.CREDENTIAL,
        **told(seen),
    )


def _shut_out(given: Given, text: str, kind: FailureKind) -> Verdict:
    """N, of the whole connection: it costs nothing and stops the connection."""
    return _back(
        given.facts,
        _FAULT_CODES[kind],
        text,
        Outcome.NOTHING_LEFT,
        delay=next_try(given),
        costs_attempt=False,
        halt=halt_of(kind),
    )


def _fault_of_ours(facts: Facts, seen: Unanswered, kind: FailureKind) -> Verdict:
    """A fault on our side that repeating cannot cure (row 5; row 6 when in doubt)."""
    code, outcome = _FAULT_CODES[kind], Outcome.NOTHING_LEFT
    if facts.doubt:
        return review(facts, code, seen.text, outcome, status=seen.status)
    return failed(code, seen.text, outcome, status=seen.status)


def _seen_too_often(facts: Facts, text: str) -> Verdict:
    """What nobody foresaw has come as often as it may."""
    return review(facts, "our_defect", text, Outcome.NOTHING_LEFT, advice=Advice.RETRY)


# --- after the marker -----------------------------------------------------------------------------


def after_the_marker(given: Given, seen: Seen) -> Verdict:
    """State `sent`: bytes may have left (rows 7-12)."""
    match seen:
        case Done():
            return _done(given, seen)
        case Accepted(reference=reference):
            if seen.echo is Echo.OTHER or not reference:
                return unknown(given, "It was accepted without a usable reference.")
            return accepted(
                "accepted",
                "Taken over there; its end is asked for.",
                Outcome.ACCEPTED,
                delay=min(max(seen.poll_after, 0.0), given.limits.accepted_max),
                job=reference,
                breath=Breath.GOOD,
            )
        case BodyLost():
            return unknown(
                given,
                f"It happened ({seen.text or f'HTTP {seen.status}'}), but its answer was lost.",
                code="body_lost",
                status=seen.status,
                breath=Breath.GOOD,
            )
        case Unanswered(nothing_left=True):
            return _nothing_left(given, seen)
        case Unanswered(replayed=True) | Refused(replayed=True):
            return _stored_error(given.facts, seen)
        case Unanswered():
            return unknown(
                given,
                seen.text,
                status=seen.status,
                breath=breath_of(seen),
                not_before=seen.retry_after,
            )
        case Refused():
            return _refused(given, seen)
        case Lapsed() if poisoned(given):
            hold = hold_for(given.facts.action, given.limits)
            return poison(given.facts, "worked on this", Outcome.UNKNOWN, doubt=True, hold=hold)
        case Lapsed():
            return unknown(
                given,
                "The worker was lost after the marker: it may have been sent.",
                code="lapsed",
                lapsed=True,
                breath=Breath.NEUTRAL,
            )
        case _:
            return unknown(given, "The answer says nothing about this write.")


def _done(given: Given, seen: Done) -> Verdict:
    """X: it happened, if the answer is about our request and says what the action must know."""
    facts, action = given.facts, given.facts.action
    if seen.echo is Echo.OTHER:
        text = f"The answer carries another reference than ours. {seen.note}".strip()
        return unknown(given, text)
    if action.creates and not seen.remote_ref:
        return unknown(given, "The answer names no object.", code="body_lost", breath=Breath.GOOD)
    if action.read_back and action.can_look:
        text = "The remote says that it is done; it is looked at before that is believed."
        return uncertain("read_back", text, Outcome.DONE, breath=Breath.GOOD)
    if seen.echo is not Echo.MISSING:
        text = seen.note or "Done, and seen in the answer."
        return confirmed("confirmed", text, Outcome.DONE, seen)
    if not action.capabilities & IDEMPOTENCY_KEY:
        return review(
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
    if facts.doubt:
        return review(
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
    text = "Done. The answer shows no sign of our key: this action no longer relies on it."
    return confirmed("confirmed", text, Outcome.DONE, seen, degrade="key")


def _as_candidate(seen: Done) -> tuple[Candidate, ...]:
    if not seen.remote_ref:
        return ()
    return (Candidate(seen.remote_ref, matches=True, fields=seen.values, values=seen.values),)


def _nothing_left(given: Given, seen: Unanswered) -> Verdict:
    """N: certain that no byte of ours was executed."""
    facts = given.facts
    match seen.kind:
        case FailureKind.ABORTED:
            text = f"Nothing left: {seen.text}"
            return _back(facts, "given_back", text, Outcome.NOTHING_LEFT, costs_attempt=False)
        case FailureKind.ADDRESS | FailureKind.LOCAL as kind:
            return _fault_of_ours(facts, seen, kind)
        case FailureKind.CERTIFICATE | FailureKind.PROXY_AUTH as kind:
            return _shut_out(given, seen.text, kind)
        case FailureKind.OTHER if facts.attempts >= FORESEEN_BY_NOBODY:
            return _seen_too_often(facts, seen.text)
    if exhausted(given):
        return review(
            facts,
            "exhausted",
            f"{seen.text} No attempts are left.",
            Outcome.NOTHING_LEFT,
            advice=retry_unless_in_doubt(facts),
            breath=breath_of(seen),
            status=seen.status,
        )
    return _back(
        facts,
        "our_defect" if seen.kind is FailureKind.OTHER else "not_reached",
        f"Nothing left: {seen.text}",
        Outcome.NOTHING_LEFT,
        delay=next_try(given, seen.retry_after),
        breath=breath_of(seen),
        status=seen.status,
    )


def _stored_error(facts: Facts, seen: Unanswered | Refused) -> Verdict:
    """The remote keeps an error under our key and gives it back: no repeat brings another (F50)."""
    unanswered = isinstance(seen, Unanswered)
    return review(
        facts,
        "key_stores_error",
        f"The remote repeats an earlier error under our key: {seen.text} The same key will bring "
        "it every time; only a new operation with a key of its own can get further.",
        Outcome.UNKNOWN if unanswered else Outcome.REFUSED,
        doubt=facts.doubt or unanswered,
        assumption="A2",
        error=seen.error if isinstance(seen, Refused) else None,
        status=seen.status,
    )


def _refused(given: Given, seen: Refused) -> Verdict:
    """T, D, K and R: the remote answered, and did not do it."""
    facts, action = given.facts, given.facts.action
    again = retry_unless_in_doubt(facts)
    match seen.error:
        case ErrorClass.TRANSIENT | ErrorClass.THROTTLED:
            if facts.age >= given.limits.max_age:
                text = f"{seen.text} It has been refused for too long."
                return review(
                    facts, "exhausted", text, Outcome.REFUSED_FOR_NOW, advice=again, **told(seen)
                )
            return _refused_for_now(given, seen, f"Refused for now: {seen.text}")
        case ErrorClass.CREDENTIAL:
            return _login_refused(given, seen)
        case ErrorClass.UNKNOWN:
            return unknown(given, seen.text, **told(seen))
        case ErrorClass.MISSING if action.kind is Kind.DELETE:
            text = "It was not there any more: nothing was left to delete."
            return confirmed("already_gone", text, Outcome.DONE, Done(), **told(seen))
        case ErrorClass.MISSING if action.kind is Kind.UPDATE:
            text = f"The object to change is not there any more: {seen.text}"
            advice = Advice.DISCARD
            return review(
                facts, "vanished", text, Outcome.CONFLICT, advice=advice, **answered(seen)
            )
        case ErrorClass.DENIED:
            text = f"The remote denies this action: {seen.text}"
            return review(facts, "denied", text, Outcome.DENIED, advice=again, **answered(seen))
        case ErrorClass.CONFLICT:
            return _conflicting(given, seen)
        case _:
            if facts.doubt:
                # The first copy may still be executed: a refusal of the repeat proves nothing
                # (F115).
                text = f"A repeat was refused ({seen.text}) while an earlier copy may be under way."
                return unknown(given, text, **answered(seen))
            text = seen.text or "The remote refused it for good."
            return failed("refused", text, Outcome.REFUSED, **answered(seen))


def _conflicting(given: Given, seen: Refused) -> Verdict:
    """K: what the conflict is about decides (protocol §10, 409 and 412)."""
    facts, action = given.facts, given.facts.action
    match seen.conflict:
        case Conflict.KEY_IN_PROGRESS:
            if exhausted(given) or not facts.key_alive(given.limits.retry_cap):
                # It works on our key, so it may be executed; but no repeat is left to wait with.
                text = f"The remote still works on our key: {seen.text}"
                return unknown(given, text, not_before=seen.retry_after, **answered(seen))
            return retry(
                facts,
                "key_in_progress",
                "The remote still works on our key; the same request is repeated later.",
                Outcome.CONFLICT,
                doubt=True,
                delay=max(next_try(given, seen.retry_after), copy_left(facts, just_left=True)),
                **answered(seen),
            )
        case Conflict.KEY_REUSED:
            text = f"The remote knows our key with another content: {seen.text}"
            return review(facts, "key_reused", text, Outcome.CONFLICT, doubt=True, **answered(seen))
        case Conflict.EXISTS | Conflict.VERSION if action.can_look:
            code = "exists" if seen.conflict is Conflict.EXISTS else "version_conflict"
            text = f"{seen.text} What is there is read next."
            hold = hold_for(action, given.limits)
            return uncertain(code, text, Outcome.CONFLICT, hold=hold, **answered(seen))
        case _:
            text = f"The remote reports a conflict: {seen.text}"
            again = retry_unless_in_doubt(facts)
            return review(facts, "conflict", text, Outcome.CONFLICT, advice=again, **answered(seen))
