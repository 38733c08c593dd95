"""What to look for over there when the hub cannot look: so that a person can settle the doubt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from django.utils.translation import gettext as _

from hub import remote, review
from hub.contract import Kind, Write
from hub.models import Mapping, Operation
from hub.panel.choices import Button
from hub.panel.connection import in_words
from hub.registry import UnknownAction, UnknownIntegration
from hub.states import State

MOST = 8
"""Fields that are named to search by."""
LONGEST = 120
"""Characters of a value somebody would search by."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search a person makes in the remote system, and what follows from what it shows."""

    task: str
    account: str
    address: str
    by: tuple[tuple[str, str], ...]
    """Field and value; the value is empty for those who may not see any."""
    reference: str
    """What we would have written there, for a create."""
    when: str
    then: tuple[str, ...]


def search(
    operation: Operation, fields: dict[str, Any], buttons: Iterable[Button], *, values: bool
) -> Search | None:
    """What to search by; None where nothing is in doubt, or the hub can look by itself."""
    if operation.state != State.REVIEW.value or not operation.maybe_executed:
        return None
    try:
        action = remote.declared(operation.connection, operation.action)
    except (UnknownIntegration, UnknownAction):
        return None
    if action.can_look:
        return None
    connection = operation.connection
    parts = urlsplit(connection.base_url)
    known = _known_there(operation)
    return Search(
        _task(operation, action, known),
        connection.account,
        connection.base_url if parts.scheme in ("http", "https") and not parts.username else "",
        tuple(_by(fields, values=values)),
        operation.reference if action.kind is Kind.CREATE else "",
        _when(operation, action),
        tuple(_then(operation, action, buttons)),
    )


def _known_there(operation: Operation) -> str:
    return (
        Mapping.objects.filter(
            tenant_id=operation.tenant_id,
            connection_id=operation.connection_id,
            object_type=operation.object_type,
            source_system=operation.source_system,
            source_id=operation.source_id,
        )
        .values_list("remote_ref", flat=True)
        .first()
        or operation.remote_ref
    )


def _task(operation: Operation, action: Write, known: str) -> str:
    named = {"type": operation.object_type, "ref": known or "?"}
    match action.kind:
        case Kind.DELETE:
            return _("See there whether %(type)s %(ref)s is gone.") % named
        case Kind.CREATE:
            return _("Search there for a new %(type)s with these values.") % named
        case _ if known:
            return _("Open %(type)s %(ref)s there and see whether it has these values.") % named
        case _:
            return _("Search there for the %(type)s and see whether it has these values.") % named


def _by(fields: dict[str, Any], *, values: bool) -> Iterable[tuple[str, str]]:
    found = [(name, text) for name, value in fields.items() if (text := _text(value))]
    for name, text in found[:MOST]:
        yield name, text if values else ""


def _text(value: Any) -> str:
    """What one would type into a search field; empty for what nobody searches by."""
    if isinstance(value, list):
        return _text(value[0]) if value else ""
    if isinstance(value, dict):
        return _text(value.get("value"))
    if isinstance(value, bool) or value is None:
        return ""
    text = str(value).strip()
    return text if len(text) <= LONGEST else ""


def _when(operation: Operation, action: Write) -> str:
    first = operation.first_sent_at or operation.sent_at or operation.created_at
    last = _last_possible(operation, action)
    if last is None:
        return _("It would have happened after: %(first)s") % {"first": in_words(first)}
    return _("It would have happened between %(first)s and %(last)s") % {
        "first": in_words(first),
        "last": in_words(last),
    }


def _last_possible(operation: Operation, action: Write) -> datetime | None:
    sent = operation.last_byte_at or operation.sent_at
    if sent is None or action.max_exec is None:
        return None
    return sent + timedelta(seconds=action.max_exec + (action.index_lag or 0.0))


def _then(operation: Operation, action: Write, buttons: Iterable[Button]) -> Iterable[str]:
    """One sentence per button that can be pressed: none is named that cannot."""
    found = {one.action: one.label for one in buttons if not one.why_not}
    if review.LINK in found:
        yield _("If it is there: enter its id below and press %(button)s.") % {
            "button": found[review.LINK]
        }
    if review.SEND_AGAIN in found:
        yield _("If it is not there: press %(button)s.") % {"button": found[review.SEND_AGAIN]}
    elif review.RETRY in found:
        yield _("If it is not there: press %(button)s.") % {"button": found[review.RETRY]}
    if review.DISCARD in found:
        settled = (
            _("If it is gone, or no longer wanted: press %(button)s.")
            if action.kind is Kind.DELETE
            else _("If it is no longer wanted: press %(button)s.")
        )
        yield settled % {"button": found[review.DISCARD]}
