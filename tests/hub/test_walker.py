"""Two tenants, all roles, every address: nothing of the other tenant shows, and nothing is written
without its right.

The addresses are those the resolver knows, so a new page is walked from its first day. Two ways of
looking for what must not show: names and numbers of the other tenant, which are like no others; and
every page drawn twice, before the other tenant had anything and after, which must look the same.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection as database
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from hub import access, cases, review
from hub.models import (
    Bucket,
    Candidate,
    Connection,
    Decision,
    Heartbeat,
    Mapping,
    Operation,
    Refusal,
    Scope,
    Tenant,
)
from hub.states import State
from tests.hub import pages

pytestmark = pytest.mark.django_db
ROLES = ("reader", "agent", "senior", "business admin", "developer")
MARK = "forasteria"
"""In every name and text of the other tenant."""
BASE, STEP = 7_000_000, 10_000
"""Numbers of the other tenant's rows: seven digits, another ten thousand for each model."""
NUMBER = re.compile(r"(?<![0-9A-Za-z])7\d{6}(?![0-9A-Za-z])")
OWN_ACCOUNT = {"logout", "password_change", "password_change_done", "set_language", "login"}
"""What anybody may send: it touches nothing but their own login."""
HUB_ITSELF = {"health-echo"}


@pytest.fixture(autouse=True)
def roles(db: None) -> None:
    """The groups of the migration; tests that empty the database take them along."""
    importlib.import_module("hub.migrations.0004_access").make_roles(apps, None)


# --- two tenants ----------------------------------------------------------------------------------


def somebody(name: str, role: str, tenant: str) -> User:
    user = pages.person(name, sees=tenant)
    user.groups.add(Group.objects.get(name=role))
    return User.objects.get(pk=user.pk)


def ours() -> Connection:
    portal = pages.connection()
    pages.one_of_each(portal)
    cases.about_connection(portal.pk, "credential", "They refuse us.")
    Heartbeat.objects.update(in_flight=3, settled=44)
    return portal


def walked() -> list[type[Model]]:
    return [*apps.get_app_config("hub").get_models(), User, Group, LogEntry]


def _number_from_here() -> None:
    """From now on rows have numbers like no others, each model its own."""
    with database.cursor() as cursor:
        for place, model in enumerate(walked()):
            table, start = model._meta.db_table, BASE + STEP * place
            if model._meta.pk.get_internal_type() not in ("BigAutoField", "AutoField"):
                continue
            if database.vendor == "postgresql":
                cursor.execute(
                    "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [table, start]
                )
                continue
            cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [table])
            cursor.execute(
                "INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, start]
            )


def theirs() -> Connection:
    """The other tenant, with a row of every kind, all of them marked."""
    _number_from_here()
    tenant = Tenant.objects.create(slug=MARK, name=MARK.capitalize())
    portal = pages.connection(f"{MARK}-portal", tenant=tenant, label=f"Portal of {MARK}")
    beat = Heartbeat.objects.get()
    Heartbeat.objects.update(drain="kept")
    pages.one_of_each(portal)
    Heartbeat.objects.exclude(pk=beat.pk).delete()
    Heartbeat.objects.update(drain=beat.drain, in_flight=9, settled=4_711)
    cases.about_connection(portal.pk, "certificate", f"The certificate of {MARK}.")
    for row in Operation.objects.filter(connection=portal):
        Operation.objects.filter(pk=row.pk).update(source_id=f"{MARK}-{row.source_id}")
    Mapping.objects.filter(connection=portal).update(source_id=f"{MARK}-1", remote_ref=MARK)
    Candidate.objects.filter(case__connection=portal).update(remote_ref=MARK)
    Decision.objects.filter(operation__connection=portal).update(by_name=MARK, reason=MARK)
    now = timezone.now()
    Bucket.objects.create(
        scope=f"{MARK}.example.com", group="default", rate=2, burst=4, level=1, refreshed_at=now
    )
    person = somebody(f"{MARK}-agent", "agent", MARK)
    access.reveal(person, Operation.objects.filter(connection=portal)[0], [MARK])
    access.refused(person, "hub.decide_case", "POST", f"/admin/{MARK}/")
    crew = Group.objects.create(name=f"{MARK}-crew")
    Scope.objects.create(group=crew, tenant=tenant)
    LogEntry.objects.create(
        user=person, object_repr=MARK, object_id=str(portal.pk), action_flag=ADDITION,
        content_type=ContentType.objects.get_for_model(Connection),
    )  # fmt: skip
    return portal


# --- every address --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """One way in: its name, its path with holes, and the name of each hole."""

    name: str
    route: str
    holes: tuple[str, ...]

    def filled(self, values: tuple[Any, ...]) -> str:
        path = self.route
        for hole, value in zip(self.holes, values, strict=True):
            path = re.sub(rf"<(\w+:)?{hole}>", str(value), path, count=1)
        return "/" + path

    @property
    def model(self) -> type[Model] | None:
        """The model whose page of the admin it is."""
        for model in admin.site._registry:
            if self.name.startswith(f"{model._meta.app_label}_{model._meta.model_name}_"):
                return model
        return None


def addresses(resolver: Any = None, before: str = "") -> Iterator[Address]:
    for entry in (resolver or get_resolver()).url_patterns:
        if isinstance(entry, URLResolver):
            yield from addresses(entry, before + str(entry.pattern))
        elif isinstance(entry, URLPattern):
            route = before + str(entry.pattern)
            if route.startswith("^") or "(?P" in route:
                route = re.sub(
                    r"\(\?P<(\w+)>[^)]*\)|[\^$]|\\Z", lambda m: f"<{m[1]}>" if m[1] else "", route
                )
            holes = re.findall(r"<(?:\w+:)?(\w+)>", route)
            yield Address(str(entry.name or ""), route, tuple(holes))


def _fill(address: Address, rows: dict[type[Model], Any], words: tuple[str, ...]) -> list[str]:
    """The address with these rows in its holes: of its own model where it has one, else of all."""
    if not address.holes:
        return [address.filled(())]
    if "content_type_id" in address.holes:
        types = ContentType.objects
        return [address.filled((types.get_for_model(one).pk, pk)) for one, pk in rows.items()]
    model = address.model
    numbers = [rows[model]] if model in rows else list(rows.values())
    choices: list[list[Any]] = []
    for hole in address.holes:
        if re.search(rf"<int:{hole}>", address.route):
            choices.append(numbers)
        elif hole in ("app_label", "url"):
            choices.append(["hub"])
        else:
            choices.append([*numbers, *(() if model in rows else words)])
    return [address.filled(values) for values in itertools.product(*choices)]


def rows_of(connection: Connection, theirs: bool) -> dict[type[Model], Any]:
    """One row of each kind, by its primary key."""
    found = {}
    for model in walked():
        numbers = list(model._default_manager.values_list("pk", flat=True))
        mine = [pk for pk in numbers if (int(pk) >= BASE) == theirs]
        if mine:
            found[model] = mine[0]
    return found


def entered(client: Client, user: User) -> Client:
    client.force_login(user)
    return client


def _plain(text: str) -> str:
    """A page without what differs each time it is drawn."""
    text = re.sub(r'name="(csrfmiddlewaretoken|form_token)" value="\w+"', "", text)
    text = re.sub(rf'q(=|%3D){MARK}|name="q" value="{MARK}"', "", text)  # what was asked
    return re.sub(r"\d+ (seconds?|minutes?)|\d\d:\d\d:\d\d|\d+:\d\d [ap]\.m\.", "", text)


# --- the walk -------------------------------------------------------------------------------------


def test_the_walk_reaches_every_page_there_is() -> None:
    found = list(addresses())
    names = {one.name for one in found}
    assert {"operation_story", "case_close", "connection_pause", "index", "health-live"} <= names
    for model in admin.site._registry:
        assert f"{model._meta.app_label}_{model._meta.model_name}_change" in names
    ours()
    theirs()
    filled = [path for one in found for path in _fill(one, rows_of(Connection(), True), (MARK,))]
    assert not [path for path in filled if "<" in path or "(" in path]
    kinds = set(apps.get_app_config("hub").get_models())
    assert kinds - set(rows_of(Connection(), True)) <= {
        apps.get_model("hub", name) for name in ("Installation", "Gate", "Heartbeat")
    }, "the other tenant has a row of every kind"


@pytest.mark.parametrize("role", ROLES)
def test_nothing_of_another_tenant_shows(client: Client, role: str) -> None:
    portal = ours()
    person = somebody("walker", role, "acme")
    entered(client, person)
    own = rows_of(portal, False)
    paths = sorted({path for one in addresses() for path in _fill(one, own, ("acme",))})
    questions = ("?q=in-review", "?state=all", "?closed=all", "?p=1", f"?q={MARK}")
    lists = [path for path in paths if path.count("/") == 4 and path.startswith("/admin/hub/")]
    paths += [path + question for path in lists for question in questions]
    skipped = ("/admin/logout/", "/health/")
    paths = [path for path in paths if not path.startswith(skipped)]
    before = {path: client.get(path) for path in paths}
    assert sum(one.status_code == 200 for one in before.values()) > 40
    theirs()
    entered(client, person)
    for path in paths:
        response = client.get(path)
        text = _plain(response.content.decode())
        assert MARK not in text.casefold(), path
        assert not NUMBER.findall(text), path
        assert response.status_code == before[path].status_code, path
        same = _plain(before[path].content.decode())
        assert text == same, f"{path} differs once another tenant has rows"


@pytest.mark.parametrize("role", ROLES)
def test_no_page_of_another_tenant_is_there(client: Client, role: str) -> None:
    portal = ours()
    foreign = theirs()
    entered(client, somebody("walker", role, "acme"))
    everything = _everything()
    rows = rows_of(foreign, True)
    asked = 0
    for address in addresses():
        if not address.holes or not address.name or address.name == "app_list":
            continue  # nameless are redirects of old addresses, which ask for nothing
        for path in _fill(address, rows, (MARK, f"{MARK}-1")):
            for method in ("get", "post"):
                response = getattr(client, method)(path, _sent(Operation(), "discard"))
                assert response.status_code in (403, 404, 405), f"{method} {path}"
                text = response.content.decode().casefold()
                for said in path.split("/"):
                    text = text.replace(said, "")
                assert MARK not in text, f"{method} {path}"
                assert not NUMBER.findall(text), f"{method} {path}"
                asked += 1
    assert asked > 200
    assert _everything() == everything
    assert portal.pk != foreign.pk


@pytest.mark.parametrize("role", ROLES)
def test_nothing_of_another_tenant_is_found_by_a_filter(client: Client, role: str) -> None:
    ours()
    foreign = theirs()
    entered(client, somebody("walker", role, "acme"))
    row = Operation.objects.filter(connection=foreign)[0]
    for model in admin.site._registry:
        name = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        for question in (
            f"tenant={foreign.tenant_id}", f"connection={foreign.pk}", f"q={row.pk}", f"q={MARK}",
            f"q={row.reference}", f"q={row.operation_key}", "reason=unknown", f"id={row.pk}",
        ):  # fmt: skip
            response = client.get(f"{name}?state=all&closed=all&{question}")
            if response.status_code == 200 and "cl" in response.context:
                shown = [one.pk for one in response.context["cl"].result_list]
                assert not [pk for pk in shown if str(pk).isdecimal() and int(pk) >= BASE], question


def _everything() -> str:
    """All rows there are, but for what records refusals."""
    left_out = (Refusal, LogEntry)
    return json.dumps(
        {
            model._meta.label: sorted(
                map(str, model._default_manager.filter(_kept(model)).values())
            )
            for model in walked()
            if model not in left_out
        }
    )


def _kept(model: type[Model]) -> Any:
    from django.db.models import Q

    if model is User:
        return Q()
    return Q(done=True) if model is Decision else Q()


def _sent(row: Operation, action: str) -> dict[str, str]:
    """A form as some page might send it, with all that any of them asks for."""
    return {
        "action": action, "reason": "Because", "seen_state": row.state or "review",
        "seen_token": str(row.lease_token or 0), "remote_ref": "6043", "other_ref": "",
        "name": "new", "label": "New", "slug": "new", "username": "new", "text": "A note",
    }  # fmt: skip


@pytest.mark.parametrize("role", ["reader", "developer"])
def test_who_may_only_read_writes_nothing_anywhere(client: Client, role: str) -> None:
    """And each refusal is on record: as a decision, or as a refusal."""
    portal = ours()
    walker = somebody("walker", role, "acme")
    entered(client, walker)
    everything = _everything()
    row = Operation.objects.get(state=State.REVIEW)
    own = rows_of(portal, False) | {Operation: row.pk}
    refused = 0
    for address in addresses():
        if address.name in OWN_ACCOUNT | HUB_ITSELF:
            continue
        verbs = review.ACTIONS if address.name == "operation_story" else ("save",)
        is_story = address.name == "operation_story"
        rows: dict[type[Model], Any] = {Operation: row.pk} if is_story else own
        for path, verb in itertools.product(_fill(address, rows, ("acme",)), verbs):
            for extra in ({}, {"show_values": "1"}):
                told = _on_record()
                response = client.post(path, _sent(row, verb) | extra)
                if response.status_code == 200:  # a list takes a POST for a question
                    assert address.name.endswith(_ONLY_ASKS), path
                    continue
                assert response.status_code in (301, 302, 403, 404, 405), path
                if response.status_code in (301, 302):
                    assert not address.holes or address.name == "", f"{path} went through"
                if response.status_code == 403:
                    assert _on_record() == told + 1, f"{path}: nothing is on record"
                    refused += 1
    assert refused > 40
    assert _everything() == everything
    assert Decision.objects.filter(done=False, by=walker).count() == len(review.ACTIONS)


def _on_record() -> int:
    return Refusal.objects.count() + Decision.objects.filter(done=False).count()


_ONLY_ASKS = ("_changelist", "_history", "index", "app_list", "jsi18n")
_WRITES = {
    "case_close": access.DECIDE,
    "connection_test": access.PAUSE,
    "connection_pause": access.PAUSE,
    "connection_resume": access.PAUSE,
    "connection_retire": "hub.change_connection",
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("doubt", [True, False])
def test_each_write_takes_its_right(client: Client, role: str, doubt: bool) -> None:
    portal = ours()
    walker = somebody("walker", role, "acme")
    entered(client, walker)
    row = Operation.objects.get(state=State.REVIEW)
    Operation.objects.filter(pk=row.pk).update(maybe_executed=doubt)
    for verb in review.ACTIONS:
        may = walker.has_perm(access.needed(verb, doubt=doubt))
        if may:
            continue  # what it does is tested where it is done
        assert client.post(f"/admin/operations/{row.pk}/", _sent(row, verb)).status_code == 403
        last = Decision.objects.order_by("-pk")[0]
        assert (last.action, last.done, last.by) == (verb, False, walker)
    case = portal.reviewcase_set.get(subject="connection")
    for name, right in _WRITES.items():
        if name == "connection_test" and walker.has_perm(right):
            continue  # it would ask the remote
        kind, _line, verb = name.partition("_")
        pk = case.pk if kind == "case" else portal.pk
        response = client.post(f"/admin/{kind}s/{pk}/{verb}/", {"reason": "Because"})
        assert (response.status_code == 403) != walker.has_perm(right), f"{role} {name}"


def test_every_page_of_ours_that_writes_says_which_right_it_takes() -> None:
    """A new one gets its line in `_WRITES`, or its decision in `hub.access.needed`."""
    known = {*_WRITES, "operation_story"}
    of_ours = {
        one.name for one in addresses()
        if one.holes and one.model is None and one.route.startswith("admin/")
    } - {"app_list", "view_on_site", ""}  # fmt: skip
    assert of_ours <= known
