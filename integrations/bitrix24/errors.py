"""Bitrix24's refusals as data, and where an answer keeps its code.

The status alone says little: several codes come with different statuses in the vendor's
documentation, its SDKs and people's measurements. So the `error` string decides, whatever its case,
and on any status; the status speaks only where there is no code. The set of codes is open
(numbers, sentences), and the vendor's own SDKs count a strange one on a 4xx as a refusal. Here it
counts as no answer (protocol §10): one that turns out to be a refusal gets its line below.
"""

from __future__ import annotations

import re
from typing import Any

from hub.contract import Answer, ErrorTable
from hub.states import ErrorClass

UNREADABLE = "(unreadable)"
"""Our code for a body that is not Bitrix24's JSON object: a proxy's page, an empty body."""
UNCODED = "(uncoded)"
"""Our code for an empty `error` where only a 400 may carry one."""
SOURCE_DATE = "2026-08-21"
MAX_TEXT = 500

_CREDENTIAL = (
    # About our access, not about the operation: the connection pauses, the operations wait.
    "NO_AUTH_FOUND",
    "INVALID_CREDENTIALS",
    "expired_token",
    "invalid_token",
    "authorization_error",
    "APPLICATION_NOT_FOUND",
    "ERROR_OAUTH",
    "NOT_INSTALLED",
    "PAYMENT_REQUIRED",
    "PORTAL_DELETED",
    "user_access_error",
    "allowed_only_intranet_user",
    "INVALID_REQUEST",
    "OVERLOAD_LIMIT",
)
_DENIED = (
    "ACCESS_DENIED",
    "insufficient_scope",
    "WRONG_AUTH_TYPE",
    "METHOD_CONFIRM_DENIED",
    "ERROR_METHOD_NOT_FOUND",
    "CREATE_DYNAMIC_ITEM_RESTRICTED",
    "UPDATE_DYNAMIC_ITEM_RESTRICTED",
)
_INVALID = (
    "",
    "0",
    "100",
    "INVALID_ARG_VALUE",
    "CRM_FIELD_ERROR_VALUE_NOT_VALID",
    "CRM_FIELD_ERROR_REQUIRED",
    "ERROR_CORE",
    "ERROR_BATCH_METHOD_NOT_ALLOWED",
    "ERROR_BATCH_LENGTH_EXCEEDED",
    "ERROR_MANIFEST_IS_NOT_AVAILABLE",
)
CODES: dict[str, ErrorClass] = {
    # Refused before running; costs time, not attempts.
    "QUERY_LIMIT_EXCEEDED": ErrorClass.THROTTLED,
    "OPERATION_TIME_LIMIT": ErrorClass.THROTTLED,
    # An administrator over there has yet to approve the method.
    "METHOD_CONFIRM_WAITING": ErrorClass.TRANSIENT,
    "NOT_FOUND": ErrorClass.MISSING,
    # The server says it failed, not that it did not run.
    "INTERNAL_SERVER_ERROR": ErrorClass.UNKNOWN,
    "ERROR_UNEXPECTED_ANSWER": ErrorClass.UNKNOWN,
    UNREADABLE: ErrorClass.UNKNOWN,
    UNCODED: ErrorClass.UNKNOWN,
    **dict.fromkeys(_CREDENTIAL, ErrorClass.CREDENTIAL),
    **dict.fromkeys(_DENIED, ErrorClass.DENIED),
    **dict.fromkeys(_INVALID, ErrorClass.INVALID),
}
STATUSES: dict[int, ErrorClass] = {
    400: ErrorClass.INVALID,
    401: ErrorClass.CREDENTIAL,
    402: ErrorClass.CREDENTIAL,
    403: ErrorClass.DENIED,
    # A missing item is 400 NOT_FOUND here. A 404 speaks of the address or the method, and must not
    # let a delete pass for done.
    404: ErrorClass.INVALID,
    405: ErrorClass.INVALID,
    410: ErrorClass.CREDENTIAL,
    422: ErrorClass.INVALID,
}

HINTS: dict[str, str] = {
    "overload_limit": "The vendor blocked this portal: contact Bitrix24 support, then resume.",
    "no_auth_found": "The webhook is wrong or was removed: enter a new one, then resume.",
    "invalid_credentials": "The webhook's secret is wrong, or its user lost rights: enter another.",
    "portal_deleted": "The portal is deleted, or closed for maintenance: look at it, then resume.",
    "payment_required": "The portal's subscription has ended: renew it, then resume.",
    "invalid_request": "Bitrix24 wants https: correct the connection's address.",
    "insufficient_scope": "Give the webhook the scope crm.",
    "access_denied": "Give the webhook's user rights on contacts; check that the plan has REST.",
    "error_method_not_found": "This portal lacks the method, or the webhook is malformed.",
    "wrong_auth_type": "This method is closed to webhooks.",
    "method_confirm_waiting": "An administrator of the portal has yet to approve the method.",
}
"""The next step in words, by lower-case code; added to the remote's own words."""

_TAG = re.compile(r"<[^>]{0,200}>")


def code_of(answer: Answer) -> str | None:
    """Bitrix24's code, one of ours for a body nobody can read, or None to go by the status."""
    if answer.body_lost:
        return None
    body = _object(answer)
    if body is None:
        return UNREADABLE
    if "error" not in body:
        # A success carries `result`. Anything else in JSON is some other server's answer.
        return None if "result" in body or 400 <= answer.status < 500 else UNREADABLE
    code = _text_code(body["error"])
    refused = 400 <= answer.status < 500
    if not code:
        return "" if answer.status == 400 else None if refused else UNCODED
    return code


def text_of(answer: Answer) -> str:
    """The remote's words without mark-up, capped, with code and next step where known."""
    body = _object(answer)
    if body is None:
        kind = (answer.header("content-type") or "no content type").split(";")[0][:60]
        return (
            f"HTTP {answer.status} with a body that is not Bitrix24's "
            f"({kind}, {len(answer.body)} bytes)"
        )
    error = body.get("error")
    code = _text_code(error)
    words = body.get("error_description") or (
        error.get("message") if isinstance(error, dict) else ""
    )
    # Cut first: looking for tags in megabytes of "<" would hold up the event loop.
    told = " ".join(_TAG.sub(" ", _cut(str(words or ""), 20 * MAX_TEXT)).split())
    parts = [part for part in (code, told) if part]
    text = ": ".join(parts) or f"HTTP {answer.status} without a reason"
    hint = HINTS.get(code.casefold())
    text = _cut(text, MAX_TEXT)
    return f"{text} ({hint})" if hint else text


def _cut(text: str, most: int) -> str:
    """The first whole words: half a word may be half a secret, which nobody recognises later."""
    return text if len(text) <= most else text[: most + 1].rpartition(" ")[0]


def _text_code(error: Any) -> str:
    if isinstance(error, dict):  # REST 3.0 puts an object there
        error = error.get("code", "")
    if error is None or isinstance(error, bool | list | dict):
        return ""
    return str(error).strip()


def _object(answer: Answer) -> dict[str, Any] | None:
    try:
        body = answer.json
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


ERRORS = ErrorTable(codes=CODES, statuses=STATUSES, code_of=code_of, text_of=text_of)
