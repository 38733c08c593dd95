"""Requests, items and answers that the tests of this integration share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hub.contract import Answer, Call, ConnectionSettings, Request
from hub.testing import answer
from integrations.bitrix24.connector import Bitrix24Connector

SECRET = "1/s3cretWebhook77"
SETTINGS = ConnectionSettings("bitrix24-demo", "acme", "https://portal.example/acme")
MARK = "hub-k3x7q2"
REFERENCE = "bmrq4tzk2yv7a5nwd3xe6gjh"
FIELDS: Mapping[str, Any] = {
    "first_name": "Ana",
    "last_name": "Vidal",
    "phone": "+34 600 000 001",
    "email": [{"value": "ana@shop.example", "type": "WORK"}],
    "birthdate": "1990-05-01",
}
CREATE = Request(
    action="contact.create",
    fields=FIELDS,
    object_type="contact",
    source_system="shop",
    source_id="c-1",
    version=3,
    remote_key="opkey1",
    reference=REFERENCE,
    mark=MARK,
)
UPDATE = replace(
    CREATE,
    action="contact.update",
    reference="opkey2",
    remote_key="opkey2",
    version=4,
    remote_ref="415",
)
DELETE = replace(UPDATE, action="contact.delete", fields={}, version=5)
PHONE_ROW = {"id": 991, "typeId": "PHONE", "valueType": "WORK", "value": "+34 600 000 001"}
EMAIL_ROW = {"id": 992, "typeId": "EMAIL", "valueType": "WORK", "value": "ana@shop.example"}


def connector(**options: Any) -> Bitrix24Connector:
    """A connector of the test portal."""
    return Bitrix24Connector(replace(SETTINGS, options=options), {"webhook": SECRET})


def item(**changes: Any) -> dict[str, Any]:
    """The contact of `CREATE` as the portal shows it, with changes."""
    return {
        "id": 415,
        "name": "Ana",
        "lastName": "Vidal",
        "secondName": None,
        "birthdate": "1990-05-01T00:00:00+03:00",
        "comments": None,
        "post": None,
        "originatorId": MARK,
        "originId": REFERENCE,
        "originVersion": "3",
        "createdTime": "2026-09-21T15:35:01+03:00",
        "updatedTime": "2026-09-21T15:35:01+03:00",
        "hasPhone": "Y",
        "hasEmail": "Y",
        "fm": [dict(PHONE_ROW), dict(EMAIL_ROW)],
        **changes,
    }


def item_answer(**changes: Any) -> Answer:
    """An answer with that contact."""
    return answer(200, {"result": {"item": item(**changes)}, "time": {"duration": 0.1}})


def list_answer(*items: Mapping[str, Any]) -> Answer:
    """A page of `crm.item.list`."""
    return answer(200, {"result": {"items": list(items)}, "total": 0, "time": {}})


def error_answer(code: str, status: int = 400, text: str = "Told in words") -> Answer:
    """A refusal in the vendor's envelope."""
    return answer(status, {"error": code, "error_description": text})


def sent(call: Call) -> dict[str, Any]:
    """The parameters of a call."""
    parameters: dict[str, Any] = json.loads(call.body)
    return parameters
