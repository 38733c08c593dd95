"""Bitrix24: contacts through `crm.item.*`, by incoming webhook.

The classic REST has no idempotency key and no conditional update. So a create is found again by the
pair `originatorId` + `originId`, written in that very request, and an update reads first and sends
the difference. Every call is a POST with JSON; the connection's address is the portal, the method
goes behind the webhook.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from hub.contract import (
    FIND_BY_EXTERNAL_ID,
    FULL_STATE,
    JSON,
    Accepted,
    Action,
    BadPayload,
    Call,
    CallFailed,
    CallRefused,
    Candidate,
    Checked,
    Conflict,
    Connector,
    Done,
    Echo,
    FailureKind,
    Finding,
    Kind,
    Looked,
    RateLimit,
    Refused,
    Request,
    Steps,
    Write,
    seconds,
)
from hub.states import ErrorClass
from integrations.bitrix24 import fields as contact
from integrations.bitrix24.errors import ERRORS

CONTACT = 3
PAGE = 50
MAX_PAGES = 40
SOURCE = "Bitrix24 REST documentation, limits"
DATED = "2026-08-21"
UNUSED_REFERENCE = "hub-check-0"
"""No entity can have this reference: ours are base32 without digits 0 and 1 and without dashes."""
CREATE = "contact.create"


def _write(capability: Any, kind: Kind, **more: Any) -> Write:
    # The server cuts a request off after 60 s; 75 s lets its own cut-off come first.
    return Write(
        capability,
        kind=kind,
        max_send=seconds(75),
        max_exec=seconds(60),
        source=SOURCE,
        dated=DATED,
        **more,
    )


_WEBHOOK = re.compile(r"(?:^|/rest/)/?(\d+/[A-Za-z0-9_-]+)/?$")
"""People paste the whole address Bitrix24 shows; what counts is its end."""


class Bitrix24Connector(Connector):
    """Contacts of one portal. Finds a lost create by our reference; updates and deletes by id."""

    label = "bitrix24"
    errors = ERRORS
    secret_names = ("webhook",)
    actions: ClassVar[Mapping[str, Action]] = {
        CREATE: _write(FIND_BY_EXTERNAL_ID, Kind.CREATE, index_lag=seconds(30)),
        "contact.update": _write(FULL_STATE, Kind.UPDATE, look=True, authoritative=True),
        "contact.delete": _write(FULL_STATE, Kind.DELETE, look=True, authoritative=True),
    }
    limits: ClassVar[Mapping[str, RateLimit]] = {
        # The documented bucket drains 2 per second and blocks at 50 (Enterprise: 5 and 250),
        # counted per portal and per source address. Some room is left for whoever shares our
        # address.
        "default": RateLimit(2, 40, per="host", source=SOURCE, dated=DATED),
    }

    # --- access ----------------------------------------------------------------------------------

    def authorize(self, call: Call) -> Call:
        """Put the method behind the webhook: `crm.item.add` -> `/rest/1/SECRET/crm.item.add`."""
        return replace(call, path=f"/rest/{self._webhook()}/{call.path.lstrip('/')}")

    @classmethod
    def tidy_secret(cls, name: str, text: str) -> str:
        """Of a pasted webhook address keep its end, USER_ID/SECRET: the host is no secret."""
        found = _WEBHOOK.search(text.strip())
        return found.group(1) if found is not None else text

    def _webhook(self) -> str:
        found = _WEBHOOK.search(self.secrets.get("webhook", "").strip())
        if found is None:
            raise BadPayload(
                "webhook: must read USER_ID/SECRET, the two parts after /rest/ in the address that "
                "Bitrix24 shows for the incoming webhook."
            )
        return found.group(1)

    # --- writing ---------------------------------------------------------------------------------

    def validate(self, action: str, fields: Mapping[str, JSON]) -> Iterable[str]:
        """Name unknown fields, wrong types and values too long; a delete needs no fields."""
        if action == "contact.delete":
            return ()
        return contact.problems(fields, creating=action == CREATE)

    def send(self, request: Request) -> Steps[Done | Accepted]:
        match request.action:
            case "contact.create":
                return (yield from self._create(request))
            case "contact.update":
                return (yield from self._update(request))
            case "contact.delete":
                return (yield from self._delete(request))
        raise BadPayload(f"{request.action}: Bitrix24 has no such action here.")

    def _create(self, request: Request) -> Steps[Done | Accepted]:
        fields = contact.to_create(request.fields) | {
            "originatorId": request.mark,
            "originId": request.reference,
            "originVersion": str(request.version),
        }
        answer = yield _call("crm.item.add", write=True, entityTypeId=CONTACT, fields=fields)
        item = _item(answer.json)
        if item is None:
            raise _not_as_agreed("crm.item.add answered without the item it made")
        note, echo = "", _echo(item, request)
        if echo is Echo.MISSING:
            note = "Bitrix24 answered without originId: it ignored the field our look-ups rely on."
        return self._done(request, item, echo, note)

    def _update(self, request: Request) -> Steps[Done | Accepted]:
        remote_ref = _remote_ref(request)
        item = yield from self._get(remote_ref)
        origin = str(item.get("originatorId") or "")
        theirs = _version(item, request.mark)
        if theirs is not None and theirs > request.version:
            raise CallRefused(
                Refused(
                    ErrorClass.CONFLICT,
                    text=(
                        f"Contact {remote_ref} already carries version {theirs} of ours, newer "
                        f"than {request.version}: nothing was sent."
                    ),
                    conflict=Conflict.VERSION,
                )
            )
        _check_rows(item, request)
        changes = contact.to_update(request.fields, item, request.seen_values)
        # Another system's object keeps that system's version; an object of nobody's becomes ours.
        if origin in ("", request.mark):
            if theirs != request.version:
                changes["originVersion"] = str(request.version)
            if not origin:
                changes["originatorId"] = request.mark
        if not changes:
            return self._done(
                request, item, Echo.NOT_EXPECTED, "Already as wanted; nothing was written."
            )
        answer = yield _call(
            "crm.item.update", write=True, entityTypeId=CONTACT, id=_id(remote_ref), fields=changes
        )
        saved = _item(answer.json)
        if saved is None:
            raise _not_as_agreed("crm.item.update answered without the item it changed")
        return self._updated(request, {**item, **saved}, saved, changes)

    def _updated(
        self,
        request: Request,
        item: Mapping[str, Any],
        saved: Mapping[str, Any],
        changes: Mapping[str, Any],
    ) -> Done:
        if str(saved.get("id", "")) != request.remote_ref:
            return self._done(
                request, saved, Echo.OTHER, f"The answer is about contact {saved.get('id')}."
            )
        shown = str(saved.get("originVersion") or "")
        if "originVersion" in changes and shown not in ("", changes["originVersion"]):
            return self._done(
                request, item, Echo.OTHER, "The answer carries another version of ours."
            )
        emptied = contact.cleared(changes)
        if emptied:
            # Reported by users: the answer shows null, and the value is still there. Only a read
            # after the write can tell, and the write is our last call; so this is left to a look.
            return self._done(
                request,
                item,
                Echo.OTHER,
                f"Cleared {', '.join(emptied)}; Bitrix24 does not always do so: read back first.",
            )
        if "fm" in changes and contact.compare(
            _rows_only(request.fields), item, request.seen_values
        ):
            return self._done(
                request, item, Echo.OTHER, "The answer does not show phones and e-mails as sent."
            )
        return self._done(request, item, Echo.NOT_EXPECTED)

    def _delete(self, request: Request) -> Steps[Done | Accepted]:
        remote_ref = _remote_ref(request)
        answer = yield _call(
            "crm.item.delete", write=True, entityTypeId=CONTACT, id=_id(remote_ref)
        )
        if "result" not in _object(answer.json):
            raise _not_as_agreed("crm.item.delete answered without a result")
        return Done(remote_ref=remote_ref)

    def _done(self, request: Request, item: Mapping[str, Any], echo: Echo, note: str = "") -> Done:
        return Done(
            remote_ref=str(item.get("id", "")),
            remote_version=str(item.get("updatedTime") or ""),
            values=contact.seen_values(request.fields, item),
            echo=echo,
            note=note,
        )

    # --- looking ---------------------------------------------------------------------------------

    def find(self, request: Request) -> Steps[Looked]:
        """A create by our reference, paged to the end; an update or delete by the mapped id."""
        if request.action == CREATE:
            return (yield from self._find_created(request))
        if not request.remote_ref:
            return Looked(complete=False, text="There is no remote id to look at.")
        found = yield from self.read(request, request.remote_ref)
        return Looked((found,) if found else (), complete=True, authoritative=True)

    def _find_created(self, request: Request) -> Steps[Looked]:
        rows, trouble = yield from self._pages(
            {"=originatorId": request.mark, "=originId": request.reference}
        )
        if not trouble and any(not _is_ours(row, request) for row in rows):
            trouble = "Bitrix24 listed contacts without our reference: it ignores the filter."
        ours = tuple(self._candidate(request, row) for row in rows if _is_ours(row, request))
        return Looked(ours, complete=not trouble, text=trouble)

    def _pages(self, wanted: Mapping[str, str]) -> Steps[tuple[list[Mapping[str, Any]], str]]:
        """All rows of a filter by rising id, and what was wrong with the pages (empty: nothing)."""
        rows: list[Mapping[str, Any]] = []
        last = 0
        for _ in range(MAX_PAGES):
            # Offsets over changing data skip rows, and counting is slow: page by id, without a
            # total.
            answer = yield _call(
                "crm.item.list",
                entityTypeId=CONTACT,
                filter={**wanted, ">id": last},
                select=["*"],  # phones and e-mails come only so
                order={"id": "ASC"},
                start=-1,
            )
            page = _items(answer.json)
            if page is None:
                return rows, "A page of crm.item.list came without its items."
            for row in page:
                number = _number(row.get("id"))
                if number is None or number <= last:
                    return rows, "crm.item.list repeats rows: its pages cannot be trusted."
                last = number
                rows.append(row)
            if len(page) < PAGE:
                return rows, ""
        return rows, f"More than {MAX_PAGES} pages of contacts: the look was given up."

    def read(self, request: Request, remote_ref: str) -> Steps[Candidate | None]:
        """One contact by its id, compared with what we mean."""
        try:
            item = yield from self._get(remote_ref)
        except CallRefused as refused:
            if refused.refusal.error is ErrorClass.MISSING:
                return None
            raise
        return self._candidate(request, item)

    def _get(self, remote_ref: str) -> Steps[Mapping[str, Any]]:
        answer = yield _call("crm.item.get", entityTypeId=CONTACT, id=_id(remote_ref))
        item = _item(answer.json)
        if item is None or str(item.get("id", "")) != remote_ref:
            raise CallFailed(
                FailureKind.PROTOCOL,
                f"crm.item.get did not answer with contact {remote_ref}",
                begun=False,
            )
        return item

    def _candidate(self, request: Request, item: Mapping[str, Any]) -> Candidate:
        differences = contact.compare(request.fields, item, request.seen_values)
        version = _version(item, request.mark)
        remote_ref = str(item.get("id", ""))
        return Candidate(
            remote_ref=remote_ref,
            matches=not differences,
            differences=differences,
            reference=str(item.get("originId") or ""),
            version="" if version is None else str(version),
            fields=contact.from_item(item),
            remote_version=str(item.get("updatedTime") or ""),
            values=contact.seen_values(request.fields, item),
            url=f"{self.settings.base_url.rstrip('/')}/crm/contact/details/{remote_ref}/",
        )

    # --- connection test -------------------------------------------------------------------------

    def ping(self) -> Steps[None]:
        """The portal's clock: needs no scope and touches nothing."""
        yield _call("server.time")

    def check(self) -> Steps[Checked]:
        """Who we are, and whether contacts can be found by our fields. Creates nothing."""
        return (yield from _Check(self).run())


class _Check:
    """One connection test; collects findings, and stops early when nothing else could be well."""

    def __init__(self, connector: Bitrix24Connector) -> None:
        self.connector = connector
        self.findings: list[Finding] = []
        self.proven = True

    def run(self) -> Steps[Checked]:
        address = urlsplit(self.connector.settings.base_url)
        account = f"{address.netloc}{address.path}".rstrip("/")
        try:
            yield from self._access()
            yield from self._fields()
            yield from self._filter()
        except CallRefused as refused:
            self._add("access", refused.refusal.text or "Bitrix24 refused the test.", ok=False)
        except CallFailed as failed:
            self._add("answer", f"{failed.text}: try again when the portal answers.", ok=False)
        well = self.proven and all(finding.ok for finding in self.findings)
        return Checked(tuple(self.findings), () if well else (CREATE,), account)

    def _add(self, name: str, text: str, *, ok: bool = True) -> None:
        self.findings.append(Finding(name, ok, text))

    def _access(self) -> Steps[None]:
        answer = yield _call("profile")
        profile = _object(_object(answer.json).get("result"))
        who = profile.get("ID", "?")
        stated = self.connector.settings.options.get("sees_all_contacts") is True
        if profile.get("ADMIN") in (True, "Y", "true", 1) or stated:
            self._add("user", f"The webhook acts as user {who}, who sees all contacts.")
        else:
            self._add(
                "user",
                f"The webhook acts as user {who}, who is no administrator and may not see every "
                "contact: a look could miss one. Use an administrator's webhook, or state "
                "sees_all_contacts in the connection's options.",
                ok=False,
            )
        answer = yield _call("scope")
        scope = _object(answer.json).get("result")
        has_crm = isinstance(scope, list) and "crm" in scope
        self._add(
            "scope",
            "The webhook has the scope crm." if has_crm else "Give the webhook the scope crm.",
            ok=has_crm,
        )

    def _fields(self) -> Steps[None]:
        answer = yield _call("crm.item.fields", entityTypeId=CONTACT)
        known = _object(_object(_object(answer.json).get("result")).get("fields"))
        missing = [
            name for name in ("originatorId", "originId", "originVersion") if name not in known
        ]
        self._add(
            "fields",
            f"Contacts lack {', '.join(missing)}: a lost create could not be found again."
            if missing
            else "Contacts have originatorId, originId and originVersion.",
            ok=not missing,
        )

    def _filter(self) -> Steps[None]:
        """A search for a reference that cannot exist, and for one that does."""
        nothing, trouble = yield from self.connector._pages(
            {"=originatorId": "hub-check", "=originId": UNUSED_REFERENCE}
        )
        if nothing or trouble:
            text = trouble or "it listed contacts for a reference that cannot exist"
            self._add("filter", f"The filter on originId does not work: {text}", ok=False)
            return
        known = yield from self._some_reference()
        if known is None:
            self._add(
                "filter",
                "The filter on originId finds nothing where nothing is. That it finds what is "
                "there is not yet proven: no contact has a reference. Test again after the first "
                "create.",
            )
            return
        remote_ref, wanted = known
        rows, trouble = yield from self.connector._pages(wanted)
        right = not trouble and any(str(row.get("id")) == remote_ref for row in rows)
        right = right and all(
            row.get(name.lstrip("=")) == value for row in rows for name, value in wanted.items()
        )
        self._add(
            "filter",
            f"The filter on originId finds contact {remote_ref} and nothing else."
            if right
            else f"The filter on originId does not find contact {remote_ref}, which has it.",
            ok=right,
        )

    def _some_reference(self) -> Steps[tuple[str, dict[str, str]] | None]:
        """Any contact with both origin fields, and the search that must find it."""
        answer = yield _call(
            "crm.item.list",
            entityTypeId=CONTACT,
            filter={"!originId": ""},
            select=["id", "originatorId", "originId"],
            order={"id": "ASC"},
            start=-1,
        )
        for row in _items(answer.json) or []:
            origin, reference = row.get("originatorId"), row.get("originId")
            if origin and reference:
                return str(row.get("id")), {
                    "=originatorId": str(origin),
                    "=originId": str(reference),
                }
        return None


# --- calls and what comes back -------------------------------------------------------------------


def _call(method: str, *, write: bool = False, **parameters: Any) -> Call:
    return Call.post(method, json=parameters, write=write, label=method)


def _object(value: Any) -> Mapping[str, Any]:
    # PHP writes an empty map as [].
    return value if isinstance(value, Mapping) else {}


def _item(body: JSON) -> Mapping[str, Any] | None:
    item = _object(_object(_object(body).get("result")).get("item"))
    return item if item.get("id") else None


def _items(body: JSON) -> list[Mapping[str, Any]] | None:
    items = _object(_object(body).get("result")).get("items")
    if not isinstance(items, list) or not all(isinstance(row, Mapping) for row in items):
        return None
    return items


def _not_as_agreed(text: str) -> CallFailed:
    return CallFailed(FailureKind.PROTOCOL, text, begun=True)


def _remote_ref(request: Request) -> str:
    if not request.remote_ref:
        raise BadPayload(f"{request.action}: no remote id is known; link the contact first.")
    return request.remote_ref


def _id(remote_ref: str) -> int:
    number = _number(remote_ref)
    if number is None:
        raise BadPayload(f"{remote_ref[:40]!r} is no id of a Bitrix24 contact: a number is wanted.")
    return number


def _number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _version(item: Mapping[str, Any], mark: str) -> int | None:
    """The version of ours an item carries; another system's version says nothing to us."""
    if item.get("originatorId") != mark:
        return None
    return _number(item.get("originVersion"))


def _is_ours(item: Mapping[str, Any], request: Request) -> bool:
    return item.get("originatorId") == request.mark and item.get("originId") == request.reference


def _echo(item: Mapping[str, Any], request: Request) -> Echo:
    if not item.get("originId") or not item.get("originatorId"):
        return Echo.MISSING
    return Echo.OURS if _is_ours(item, request) else Echo.OTHER


def _rows_only(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: fields[name] for name in ("phone", "email") if name in fields}


def _check_rows(item: Mapping[str, Any], request: Request) -> None:
    """Refuse to add or remove phones where those that are there were not shown."""
    flags = {"phone": "hasPhone", "email": "hasEmail"}
    hidden = [name for name in _rows_only(request.fields) if item.get(flags[name]) in ("Y", True)]
    if "fm" not in item and hidden:
        raise CallFailed(
            FailureKind.PROTOCOL,
            f"crm.item.get shows no fm though the contact has {', '.join(hidden)}",
            begun=False,
        )
