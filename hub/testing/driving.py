"""Drive a connector's steps without a network, under the rules that `delivery` holds them to."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from hub.contract import (
    JSON,
    Answer,
    BodyLost,
    Call,
    CallFailed,
    CallRefused,
    Done,
    ErrorTable,
    FailureKind,
    Refused,
    Seen,
    Steps,
    Unanswered,
    Write,
)
from hub.policy import classify

T = TypeVar("T")
Reply = Answer | Exception
Replies = Iterable[Reply] | Callable[[Call], Reply]
NO_ERRORS = ErrorTable()


class BadSteps(AssertionError):
    """The steps did what `delivery` would refuse, or asked for other calls than were foreseen."""


def answer(
    status: int = 200,
    json: JSON = None,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    body_lost: bool = False,
) -> Answer:
    """An answer as the wire hands it over; `json` is written out unless `body` is given."""
    given = tuple((name.lower(), value) for name, value in (headers or {}).items())
    if body is None:
        body = jsonlib.dumps(json, ensure_ascii=False).encode()
        given = (("content-type", "application/json"), *given)
    return Answer(status, given, body, body_lost)


def drive(
    steps: Steps[T],
    answers: Replies,
    *,
    errors: ErrorTable = NO_ERRORS,
    action: Write | None = None,
    calls: list[Call] | None = None,
) -> T:
    """Run the steps to their outcome, feeding each call the next answer.

    A refusal by the error table is raised into the steps as `CallRefused`, an unusable answer or a
    given exception as such, exactly as over the wire; what the steps do not catch comes out of
    here. `calls` collects what was asked for. `answers` may be a function that plays the remote.

    Raises `BadSteps` when a call follows the write, when more is asked for than was given, or less.
    """
    asked = calls if calls is not None else []
    feed = answers if callable(answers) else None
    queue = None if callable(answers) else iter(answers)
    written = False
    try:
        call = next(steps)
        while True:
            if not isinstance(call, Call):
                raise BadSteps(f"The steps yielded {call!r}, which is no Call.")
            if written:
                raise BadSteps(f"{call.label} follows the write: a write is the last call.")
            asked.append(call)
            written = call.write
            reply = feed(call) if feed else _next(queue, call)
            call = _hand_over(steps, call, reply, errors, action)
    except StopIteration as stop:
        left = list(queue) if queue is not None else []
        if left:
            raise BadSteps(
                f"{len(left)} answers were left over after {len(asked)} calls."
            ) from None
        return cast(T, stop.value)


def observe(
    steps: Steps[Any],
    answers: Replies,
    *,
    errors: ErrorTable = NO_ERRORS,
    action: Write | None = None,
    calls: list[Call] | None = None,
) -> Seen:
    """As `drive`, with all that can go wrong turned into what the judgement would be given."""
    asked: list[Call] = calls if calls is not None else []
    try:
        seen = drive(steps, answers, errors=errors, action=action, calls=asked)
    except BadSteps:
        raise
    except CallRefused as refused:
        return refused.refusal
    except CallFailed as failed:
        return Unanswered(failed.text, nothing_left=not failed.begun, kind=failed.kind)
    except Exception as error:  # noqa: BLE001 - as delivery does: a connector's bug is evidence
        begun = bool(asked) and asked[-1].write
        return Unanswered(f"{type(error).__name__}: {error}", nothing_left=not begun)
    return cast(Seen, seen)


def _next(queue: Any, call: Call) -> Reply:
    try:
        return cast(Reply, next(queue))
    except StopIteration:
        raise BadSteps(f"No answer was given for {call.method} {call.label}.") from None


def _hand_over(
    steps: Steps[Any], call: Call, reply: Reply, errors: ErrorTable, action: Write | None
) -> Call:
    if isinstance(reply, Exception):
        return steps.throw(reply)
    match classify(reply, errors, (action or Write()) if call.write else None):
        case None | Done():
            return steps.send(reply)
        case Refused() as refusal:
            return steps.throw(CallRefused(refusal))
        case Unanswered() as lost:
            begun = call.write and not lost.nothing_left
            return steps.throw(CallFailed(lost.kind or FailureKind.OTHER, lost.text, begun=begun))
        case BodyLost() as lost_body:
            return steps.throw(CallFailed(FailureKind.PROTOCOL, lost_body.text, begun=call.write))
        case other:
            raise BadSteps(f"An answer cannot mean {other!r}.")
