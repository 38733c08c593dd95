"""The judgement of a poll: how a job is doing that the remote took over and works on.

Holds the moves of protocol §5 that leave `accepted` or keep it (rows 13, 16 and 17), and §9.7: a
job that is given up may still end over there, so it goes to review in doubt, for an ordinary retry
would start a second one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from hub.answers import breath_of, halt_of, throttle_of, told
from hub.contract import Done, JobState, Lapsed, Progress, Refused, Seen, Unanswered
from hub.states import ErrorClass, Outcome
from hub.verdicts import (
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
    review,
)
from hub.waits import poisoned, scheduled


def polling(given: Given, seen: Seen) -> Verdict:
    """State `accepted`: the remote works on it (rows 13, 16, 17)."""
    facts = given.facts
    match seen:
        case Progress():
            return _progress(given, seen)
        case Lapsed() if poisoned(given):
            return poison(facts, "asked", Outcome.LOOKED, doubt=True)
        case Lapsed():
            verdict = _later(given, "The worker was lost while it asked.")
            return replace(verdict, adds_lapse=True, delay=0.0)
        case Refused(error=ErrorClass.CREDENTIAL):
            text = f"Asking was refused: our credential. {seen.text}"
            return _later(given, text, halt=Halt.CREDENTIAL)
        case Refused(error=ErrorClass.MISSING):
            return _given_up(facts, "unknown_job", f"The remote does not know our job: {seen.text}")
        case Refused():
            return _later(
                given,
                f"Asking was refused: {seen.text}",
                seen.retry_after,
                throttle=throttle_of(seen, given.limits),
                **told(seen),
            )
        case Unanswered():
            halt = halt_of(seen.kind)
            return _later(
                given,
                f"Asking failed: {seen.text}",
                seen.retry_after,
                halt=halt,
                breath=breath_of(seen) if halt is Halt.NO else Breath.NEUTRAL,
                status=seen.status,
            )
        case _:
            return _later(given, "Asking brought no usable answer.")


def _progress(given: Given, seen: Progress) -> Verdict:
    """What the remote says of the job."""
    facts = given.facts
    match seen.job:
        case JobState.RUNNING:
            return _later(given, seen.text or "Still at work over there.", breath=Breath.GOOD)
        case JobState.FINISHED:
            return _finished(facts, seen)
        case JobState.FAILED if facts.doubt:
            return review(
                facts,
                "job_failed",
                f"The job ended in an error, and an earlier copy may be under way: {seen.text}",
                Outcome.REFUSED,
                breath=Breath.GOOD,
            )
        case JobState.FAILED:
            text = seen.text or "The job ended in an error over there."
            return failed("job_failed", text, Outcome.REFUSED, breath=Breath.GOOD)
        case _:
            return _given_up(facts, "unknown_job", seen.text or "The remote does not know our job.")


def _finished(facts: Facts, seen: Progress) -> Verdict:
    """The job ended, which confirms it if it ended for our version and names what it must."""
    if seen.finished_for != seen.ours:
        text = f"The job ended for version {seen.finished_for or '?'}, not for {seen.ours}."
        return review(facts, "other_version", text, Outcome.LOOKED, doubt=False)
    if facts.action.creates and not seen.remote_ref:
        return _given_up(facts, "no_result", "The job ended without naming a result.")
    text = seen.text or "The job ended, for our version."
    done = Done(seen.remote_ref, seen.remote_version, seen.values)
    return confirmed("finished", text, Outcome.DONE, done)


def _given_up(facts: Facts, code: str, text: str, **more: Unpack[More]) -> Verdict:
    """It is no longer asked for, and may still end over there (§9.7)."""
    return review(facts, code, text, Outcome.LOOKED, doubt=True, **more)


def _later(
    given: Given, text: str, not_before: float | None = None, **more: Unpack[More]
) -> Verdict:
    """It is asked for again, unless that has gone on for too long."""
    facts, limits = given.facts, given.limits
    if facts.age >= limits.accepted_max:
        return _given_up(facts, "job_too_long", f"{text} It has not ended in time.", **more)
    more["delay"] = max(scheduled(facts, limits), not_before or 0.0)
    return accepted("working", text, Outcome.LOOKED, doubt=facts.doubt, **more)
