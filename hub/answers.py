"""What an answer, or its lack, says by itself.

Holds protocol §10, the table of statuses: `classify` says what an HTTP answer means for the write.
The rest says what it means for the connection (§11): whether all of it has to stop or to wait, and
whether the remote is well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from hub.contract import (
    Answer,
    BodyLost,
    Conflict,
    Done,
    ErrorTable,
    FailureKind,
    Kind,
    Refused,
    SafetyClass,
    Seen,
    Unanswered,
    Write,
)
from hub.states import ErrorClass
from hub.verdicts import Breath, Halt, Limits

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


# --- what it says about the connection (protocol §11) ---------------------------------------------

_OURS = (FailureKind.ADDRESS, FailureKind.LOCAL, FailureKind.OTHER, FailureKind.ABORTED)


def halt_of(kind: FailureKind | None) -> Halt:
    """Whether a failure stops the whole connection: each of its calls would fail alike."""
    match kind:
        case FailureKind.CERTIFICATE:
            return Halt.CERTIFICATE
        case FailureKind.PROXY_AUTH:
            return Halt.CREDENTIAL
        case _:
            return Halt.NO


def breath_of(seen: Unanswered) -> Breath:
    """Whether silence speaks against the remote: our own faults never do."""
    return Breath.NEUTRAL if seen.kind in _OURS else Breath.BAD


def throttle_of(seen: Refused, limits: Limits) -> float | None:
    """How long the whole connection waits; only a rate limit says something about the others."""
    if seen.error is not ErrorClass.THROTTLED:
        return None
    return seen.retry_after if seen.retry_after is not None else min(1.0, limits.retry_base)


class Told(TypedDict):
    """What a refusal leaves on record."""

    error: ErrorClass
    status: int | None


def told(seen: Refused) -> Told:
    """The error and the status of a refusal, for its verdict."""
    return {"error": seen.error, "status": seen.status}


class Answered(Told):
    """The same, with what it says of the remote: who refuses is there and well."""

    breath: Breath


def answered(seen: Refused) -> Answered:
    """The error and the status of a refusal, which speaks for the remote, for its verdict."""
    return {"error": seen.error, "status": seen.status, "breath": Breath.GOOD}
