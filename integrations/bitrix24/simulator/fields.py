"""Which fields a CRM type has, and how a submitted value becomes a stored one.

Names and types follow the vendor's ``crm.item.fields``; only the fields an integration is likely to
meet are listed. A name that is not listed does not exist: saving ignores it silently, filtering by
it is refused, which is how the real service behaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from .errors import RestError

PORTAL_ZONE = timezone(timedelta(hours=3))
"""Bitrix24 answers in the server's offset, with whole seconds."""


class Kind(Enum):
    """The value types of ``crm.item.fields`` that matter for saving and filtering."""

    STRING = "string"
    INTEGER = "integer"
    DOUBLE = "double"
    FLAG = "char"
    DATE = "date"
    DATETIME = "datetime"
    MULTIFIELD = "crm_multifield"


class Field(NamedTuple):
    """One field of a type. ``read_only`` fields are ignored when saving, as unknown names are."""

    kind: Kind
    read_only: bool = False


class EntityType(NamedTuple):
    """One CRM type: its number, the name used in the ledger, and its fields by name."""

    number: int
    name: str
    fields: Mapping[str, Field]

    @property
    def reference_field(self) -> str:
        """The field that holds an external identifier: ``originId``, or ``xmlId``."""
        return "originId" if "originId" in self.fields else "xmlId"


_ORIGIN = {"originatorId": Field(Kind.STRING), "originId": Field(Kind.STRING)}
_VERSION = {"originVersion": Field(Kind.STRING)}
_XML = {"xmlId": Field(Kind.STRING)}
_EVERY = {
    "id": Field(Kind.INTEGER, read_only=True),
    "createdTime": Field(Kind.DATETIME, read_only=True),
    "updatedTime": Field(Kind.DATETIME, read_only=True),
    "createdBy": Field(Kind.INTEGER, read_only=True),
    "updatedBy": Field(Kind.INTEGER, read_only=True),
    "assignedById": Field(Kind.INTEGER),
    "opened": Field(Kind.FLAG),
    "comments": Field(Kind.STRING),
    "sourceId": Field(Kind.STRING),
    "sourceDescription": Field(Kind.STRING),
    "lastActivityTime": Field(Kind.DATETIME, read_only=True),
    "utmSource": Field(Kind.STRING),
    "ufCrm_1758000000001": Field(Kind.STRING),
}
_FM = {
    "fm": Field(Kind.MULTIFIELD),
    "hasPhone": Field(Kind.FLAG, read_only=True),
    "hasEmail": Field(Kind.FLAG, read_only=True),
    "phone": Field(Kind.STRING, read_only=True),
    "email": Field(Kind.STRING, read_only=True),
}
_PERSON = {
    "honorific": Field(Kind.STRING),
    "name": Field(Kind.STRING),
    "secondName": Field(Kind.STRING),
    "lastName": Field(Kind.STRING),
    "birthdate": Field(Kind.DATE),
    "post": Field(Kind.STRING),
    "address": Field(Kind.STRING),
}
_MONEY = {
    "opportunity": Field(Kind.DOUBLE),
    "currencyId": Field(Kind.STRING),
    "isManualOpportunity": Field(Kind.FLAG),
    "companyId": Field(Kind.INTEGER),
    "contactId": Field(Kind.INTEGER),
    "stageId": Field(Kind.STRING),
    "categoryId": Field(Kind.INTEGER),
    "begindate": Field(Kind.DATETIME),
    "closedate": Field(Kind.DATETIME),
}
_TITLE = {"title": Field(Kind.STRING)}

_TYPES: dict[int, tuple[str, dict[str, Field]]] = {
    1: ("lead", _EVERY | _ORIGIN | _FM | _PERSON | _TITLE | _MONEY),
    2: ("deal", _EVERY | _ORIGIN | _TITLE | _MONEY | {"leadId": Field(Kind.INTEGER)}),
    3: (
        "contact",
        _EVERY
        | _ORIGIN
        | _VERSION
        | _FM
        | _PERSON
        | {
            "companyId": Field(Kind.INTEGER),
            "typeId": Field(Kind.STRING),
            "export": Field(Kind.FLAG),
            "leadId": Field(Kind.INTEGER),
        },
    ),
    4: (
        "company",
        _EVERY
        | _ORIGIN
        | _VERSION
        | _FM
        | _TITLE
        | {
            "typeId": Field(Kind.STRING),
            "industry": Field(Kind.STRING),
            "revenue": Field(Kind.DOUBLE),
            "address": Field(Kind.STRING),
        },
    ),
    7: ("quote", _EVERY | _TITLE | _MONEY | _XML),
    31: ("invoice", _EVERY | _TITLE | _MONEY | _XML),
}
_FIRST_SMART_PROCESS = 128


@cache
def entity_type(number: int) -> EntityType:
    """The type with that ``entityTypeId``; raises the vendor's 400 ``NOT_FOUND`` if none."""
    if number in _TYPES:
        name, fields = _TYPES[number]
        return EntityType(number, name, fields)
    if number >= _FIRST_SMART_PROCESS:
        return EntityType(number, f"dynamic_{number}", _EVERY | _TITLE | _MONEY | _XML)
    raise RestError(400, "NOT_FOUND", "Smart process not found")


def entity_named(name: str) -> EntityType:
    """The type called ``name`` (``contact``, ``dynamic_144``) or numbered so (``3``)."""
    if name.isdigit():
        return entity_type(int(name))
    if name.startswith("dynamic_") and name[8:].isdigit():
        return entity_type(int(name[8:]))
    for number, (known, _) in _TYPES.items():
        if known == name:
            return entity_type(number)
    raise RestError(400, "NOT_FOUND", f"There is no CRM type called {name}")


def moment(at: float) -> str:
    """A point in time as the service writes it."""
    return datetime.fromtimestamp(int(at), UTC).astimezone(PORTAL_ZONE).isoformat()


def stored(name: str, field: Field, value: Any) -> Any:
    """The value as it is kept: native types, empty as ``None``.

    Raises the vendor's 400 ``CRM_FIELD_ERROR_VALUE_NOT_VALID`` for a value of the wrong shape.
    """
    if value is None or value == "":
        return None
    if isinstance(value, dict | list):
        raise _not_valid(name)
    if field.kind is Kind.STRING:
        if isinstance(value, bool):
            return "1" if value else None
        return str(value)
    if field.kind is Kind.FLAG:
        return "Y" if value in (True, "Y", "y", "1", 1) else "N"
    if field.kind is Kind.INTEGER:
        return _integer(name, value)
    if field.kind is Kind.DOUBLE:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise _not_valid(name) from None
    return _date(name, value, field.kind)


def _integer(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise _not_valid(name) from None


def _date(name: str, value: Any, kind: Kind) -> str:
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        raise _not_valid(name) from None
    if kind is Kind.DATE:
        parsed = parsed.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=PORTAL_ZONE)
    elif parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=PORTAL_ZONE)
    return parsed.astimezone(PORTAL_ZONE).isoformat(timespec="seconds")


def _not_valid(name: str) -> RestError:
    return RestError(
        400, "CRM_FIELD_ERROR_VALUE_NOT_VALID", f"Invalid value of field &quot;{name}&quot;"
    )


_CLASSIC_SPECIAL = {
    "ID": "id",
    "DATE_CREATE": "createdTime",
    "DATE_MODIFY": "updatedTime",
    "CREATED_BY_ID": "createdBy",
    "MODIFY_BY_ID": "updatedBy",
    "PHONE": "fm:PHONE",
    "EMAIL": "fm:EMAIL",
    "WEB": "fm:WEB",
    "IM": "fm:IM",
}


@cache
def camel(classic: str) -> str:
    """The ``crm.item.*`` name of a classic one: ``LAST_NAME`` -> ``lastName``."""
    upper = classic.upper()
    if upper in _CLASSIC_SPECIAL:
        return _CLASSIC_SPECIAL[upper]
    if upper.startswith("UF_CRM_"):
        return "ufCrm_" + classic[7:]
    first, *rest = upper.lower().split("_")
    return first + "".join(part.capitalize() for part in rest)


@cache
def classic(name: str) -> str:
    """The classic name of a ``crm.item.*`` one: ``lastName`` -> ``LAST_NAME``."""
    for old, new in _CLASSIC_SPECIAL.items():
        if new == name:
            return old
    if name.startswith("ufCrm_"):
        return "UF_CRM_" + name[6:]
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).upper()
