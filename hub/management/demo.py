"""The demo: two tenants with a stand-in portal each, logins, and a story of changes that meet
faults on purpose.

Everything is made once and found again: started a second time, the demo goes on where it was. Its
connections carry small numbers, so that what is unknown is found out within seconds, and may reach
this machine itself, which `manage.py check --deploy` refuses.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import transaction

from hub import credentials, gate, health, keys, outbox
from hub.checks import DEMO_DOMAIN
from hub.contract import BadPayload
from hub.models import Connection, Tenant

LOGINS = ("admin", "agent", "senior", "developer", "auditor")
_SOURCE = {"source": "demo: a stand-in on this machine", "date": "2026-11-30"}
_NUMBERS = {
    "*": {
        "max_send": {"value": 3, **_SOURCE},
        "max_exec": {"value": 2, **_SOURCE},
    },
    "contact.create": {"index_lag": {"value": 1, **_SOURCE}},
}
_LIMITS = {"default": {"rate": 20, "burst": 40, **_SOURCE}}


def simulator_url() -> str:
    """Where the demo's stand-in answers: the port after the web's."""
    return f"http://127.0.0.1:{settings.HUB_PORT + 1}"


@dataclass(frozen=True, slots=True)
class Portal:
    """A connection of the demo and the part of the stand-in it stands for."""

    name: str
    title: str
    tenant: str
    portal: str


TENANTS = {"acme": "Acme GmbH", "globex": "Globex S.A."}
PORTALS = (
    Portal("bitrix24-demo", "Bitrix24 of Acme", "acme", "acme"),
    Portal("bitrix24-globex", "Bitrix24 of Globex", "globex", "globex"),
    # A portal with a flaw of its own, so that its loss of a class does not touch the other two.
    Portal("bitrix24-archive", "Old Bitrix24 of Globex", "globex", "archive"),
)


# --- data -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Made:
    """What the demo consists of; `password` is in clear, to be printed."""

    password: str
    created: list[str] = field(default_factory=list)


def ensure() -> Made:
    """Make what is missing and point the demo's connections at the present port; nothing is made
    twice.
    """
    made = Made(password())
    with transaction.atomic():
        for slug, name in TENANTS.items():
            if Tenant.objects.get_or_create(slug=slug, defaults={"name": name})[1]:
                made.created.append(f"tenant {slug}")
        for portal in PORTALS:
            if _ensure_connection(portal):
                made.created.append(f"connection {portal.name}")
        health.ensure_probe()
        for login in LOGINS:
            if _ensure_login(login, made.password):
                made.created.append(f"login {login}")
    return made


def _ensure_connection(portal: Portal) -> bool:
    url = f"{simulator_url()}/{portal.portal}"
    row, created = Connection.objects.get_or_create(
        name=portal.name,
        defaults={
            "tenant": Tenant.objects.get(slug=portal.tenant),
            "label": portal.title,
            "integration": "bitrix24",
            "account": portal.portal,
            "base_url": url,
            "secrets": credentials.seal({"webhook": f"1/{secrets.token_hex(12)}"}),
            "networks": "127.0.0.0/8",
            "numbers": _NUMBERS,
            "limits": _LIMITS,
            "contact": "the stand-in beside this hub",
        },
    )
    if row.base_url != url:
        Connection.objects.filter(pk=row.pk).update(base_url=url)
    gate.ensure(row)
    return created


def password() -> str:
    """The password of the demo's logins: `HUB_DEMO_PASSWORD`, or one made once and kept in
    `HUB_HOME`.
    """
    import environ

    given: str = environ.Env().str("HUB_DEMO_PASSWORD", default="")
    if given:
        return given
    path = Path(settings.HUB_HOME) / "demo_password"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(9) + "\n")
    return path.read_text().strip()


# The groups a role may have in the installation; those a later migration makes are used once they
# are there.
_GROUPS = {
    "agent": ("agent",),
    "senior": ("senior",),
    "developer": ("integration developer", "developer"),
    "auditor": ("reader", "auditor"),
}


def _ensure_login(name: str, secret: str) -> bool:
    user, created = get_user_model().objects.get_or_create(
        username=name,
        defaults={
            "email": f"{name}{DEMO_DOMAIN}",
            "is_staff": True,
            "is_superuser": name == "admin",
        },
    )
    if not user.check_password(secret):
        user.set_password(secret)
        user.save(update_fields=["password"])
    if name != "admin":
        groups = Group.objects.filter(name__in=_GROUPS[name])
        user.groups.add(*groups)
        if not groups:
            user.user_permissions.add(*_permissions(name))
    return created


def _permissions(name: str) -> list[Permission]:
    """What a role may do where no group says it: all read, agents and seniors decide."""
    wanted = list(
        Permission.objects.filter(content_type__app_label="hub", codename__startswith="view_")
    )
    codes = {"agent": ["decide_case"], "senior": ["decide_case", "send_again"]}.get(name, [])
    return wanted + list(
        Permission.objects.filter(content_type__app_label="hub", codename__in=codes)
    )


# --- the story ------------------------------------------------------------------------------------

_FIRST = ("Alex", "Robin", "Kim", "Sascha", "Noa", "Andrea", "Toni", "Charlie", "Jamie", "Luca")
_LAST = ("Example", "Sample", "Muster", "Ejemplo", "Prueba", "Specimen", "Beispiel", "Modelo")


@dataclass(frozen=True, slots=True)
class Scene:
    """One change of the story: where, what, and the fault that the stand-in is told to commit with
    it.
    """

    number: int
    connection: str
    action: str
    source_id: str
    version: int
    fields: dict[str, Any]
    faults: tuple[dict[str, Any], ...] = ()


_ADD = "crm.item.add"


def _fault(fault: str, times: int = 1, **more: Any) -> dict[str, Any]:
    return {"fault": fault, "method": _ADD, "times": times, **more}


# What happens to every third contact, in turn. Each order names the reference of its contact, so
# that nobody else's operation meets it.
_TROUBLES: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    ("acme", (_fault("answer_lost_after_commit"),)),
    ("globex", (_fault("throttle", times=2),)),
    ("acme", (_fault("late_commit", seconds=1.2),)),
    ("globex", (_fault("coded_5xx_after_commit"),)),
    ("acme", (_fault("access_denied"),)),
    ("globex", (_fault("answer_lost_before_commit"),)),
    ("acme", (_fault("duplicate_execution"), _fault("answer_lost_after_commit"))),
    ("globex", (_fault("html_body"),)),
    ("archive", (_fault("field_ignored"),)),
    ("acme", (_fault("answer_lost_before_commit", times=2),)),
    ("globex", (_fault("index_lag", seconds=0.8), _fault("cut_body"))),
    ("acme", (_fault("operation_time_limit"),)),
    ("globex", (_fault("wrong_echo"),)),
    ("archive", (_fault("answer_lost_after_commit"),)),
)
_PLACES = {portal.portal: portal for portal in PORTALS}


def scenes() -> Iterator[Scene]:
    """The whole story, always the same; about seventy changes."""
    number = 0
    for turn, (place, faults) in enumerate(_TROUBLES):
        for step in range(3):
            portal = _PLACES[place] if step == 2 else PORTALS[(turn + step) % 2]
            number += 1
            yield Scene(
                number,
                portal.name,
                "contact.create",
                f"demo-{number:03}",
                1,
                _contact(number),
                faults if step == 2 else (),
            )
        # The first of each three changes again: later versions follow the create in its stream.
        first = PORTALS[turn % 2]
        number += 1
        yield Scene(
            number,
            first.name,
            "contact.update",
            f"demo-{number - 3:03}",
            2,
            {"phone": f"+49 30 555 0{number:03}", "post": "Purchasing"},
        )
    for back, turn in ((1, 0), (9, 2)):
        number += 1
        yield Scene(number, PORTALS[turn % 2].name, "contact.delete", f"demo-{back:03}", 3, {})


def _contact(number: int) -> dict[str, Any]:
    first, last = _FIRST[number % len(_FIRST)], _LAST[(number * 3) % len(_LAST)]
    return {
        "first_name": first,
        "last_name": f"{last} {number}",
        "email": f"contact{number}@example.com",
        "phone": f"+49 30 555 1{number:03}",
    }


def pause_before(number: int) -> float:
    """Seconds before a scene: quick at first, so that there is something to see, then slower."""
    return 2.0 if number <= 24 else 4.0 if number <= 48 else 6.0


def tell(
    *,
    say: Callable[[str], None],
    wait: Callable[[float], bool],
    pace: float = 1.0,
    order: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Submit the scenes that are still to come, one after the other; how many were new.

    `wait` sleeps and says whether to go on. Told again, the story goes on behind its last scene: a
    scene that was submitted is found by its key and neither submitted nor disturbed again.
    """
    order = order or order_fault
    fresh = 0
    for scene in scenes():
        connection = (
            Connection.objects.select_related("tenant").filter(name=scene.connection).first()
        )
        if connection is None or connection.retired_at is not None or _was_told(connection, scene):
            continue
        if not wait(pace * pause_before(scene.number)):
            break
        try:
            for fault in scene.faults:
                order({**fault, **_aim(connection, scene)})
        except OSError as error:
            say(f"the stand-in takes no orders ({error}); {scene.source_id} goes without its fault")
        try:
            submitted = outbox.submit(
                connection,
                scene.action,
                source_id=scene.source_id,
                version=scene.version,
                fields=scene.fields,
                source_system="demo",
            )
        except (BadPayload, outbox.Impossible, outbox.Drift) as error:
            # A person may have decided otherwise in the meantime, such as discarded the create.
            say(f"{scene.action} {scene.source_id}: not submitted: {error}")
            continue
        fresh += submitted.fresh
    return fresh


def _key(connection: Connection, scene: Scene) -> str:
    return keys.operation_key(
        tenant=connection.tenant.slug,
        account=connection.account,
        source_system="demo",
        object_type="contact",
        source_id=scene.source_id,
        action=scene.action,
        version=scene.version,
        variant="",
    )


def _was_told(connection: Connection, scene: Scene) -> bool:
    from hub.models import Operation

    return Operation.objects.filter(
        tenant_id=connection.tenant_id, operation_key=_key(connection, scene)
    ).exists()


def _aim(connection: Connection, scene: Scene) -> dict[str, Any]:
    """Portal, and the reference the create will carry: nobody else's request meets the order."""
    reference = keys.entity_reference(
        tenant=connection.tenant.slug,
        account=connection.account,
        object_type="contact",
        source_system="demo",
        source_id=scene.source_id,
    )
    return {"portal": connection.account, "reference": reference}


def order_fault(order: dict[str, Any]) -> None:
    """Tell the stand-in to misbehave once; raises `URLError` when it does not answer."""
    request = Request(  # noqa: S310 - the stand-in on this machine
        f"{simulator_url()}/_sim/faults",
        data=json.dumps(order).encode(),
        headers={"content-type": "application/json"},
    )
    with urlopen(request, timeout=3):  # noqa: S310
        pass


def sleeper(stopped: Callable[[], bool], nap: float = 0.1) -> Callable[[float], bool]:
    """A `wait` for `tell` that looks up now and then whether to stop."""

    def wait(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if stopped():
                return False
            time.sleep(min(nap, max(0.0, end - time.monotonic())))
        return not stopped()

    return wait
