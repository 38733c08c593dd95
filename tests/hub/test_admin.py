"""The lists and the connection form of the admin (F130, H10, I15)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection as database
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from hub import cases, credentials, gate, registry
from hub.admin import base
from hub.admin.connection import ConnectionAdmin
from hub.indexes import Literal
from hub.models import Bucket, Connection, Gate, Operation, ReviewCase, Tenant
from hub.panel import words
from hub.states import State
from tests.hub import pages

pytestmark = pytest.mark.django_db
OPERATIONS = "/admin/hub/operation/"


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(pages.person("root", root=True))
    return client


def listed(client: Client, address: str) -> set[int]:
    """The primary keys a list shows."""
    return {row.pk for row in client.get(address).context["cl"].result_list}


# --- what is in it, and what is not ---------------------------------------------------------------


def test_every_model_of_the_hub_is_registered() -> None:
    registered = set(admin.site._registry)
    through = {Operation.after.through} if Operation.after.through._meta.auto_created else set()
    assert set(apps.get_app_config("hub").get_models()) - through <= registered


def test_no_django_q_model_is_within_reach(root: Client) -> None:
    assert not [m for m in admin.site._registry if m._meta.app_label == "django_q"]
    assert root.get("/admin/django_q/").status_code == 404
    assert root.get("/admin/django_q/schedule/add/").status_code == 404
    # Also not when something registers one later on.
    schedule = apps.get_model("django_q", "Schedule")
    admin.site.register(schedule)
    assert schedule not in admin.site._registry


def test_nothing_can_be_deleted(root: Client) -> None:
    pages.one_of_each(pages.connection())
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="root")
    for model, shown in admin.site._registry.items():
        assert not shown.has_delete_permission(request), model
        assert "delete_selected" not in shown.get_actions(request), model
        row = model._default_manager.first()
        if row is not None:
            name = f"admin:{model._meta.app_label}_{model._meta.model_name}_delete"
            address = reverse(name, args=[row.pk])
            assert root.post(address, {"post": "yes"}).status_code == 403, model
            assert model._default_manager.filter(pk=row.pk).exists()


def test_all_but_settings_and_users_only_read() -> None:
    request = RequestFactory().get("/")
    request.user = pages.person("root", root=True)
    writable = {
        model.__name__
        for model, shown in admin.site._registry.items()
        if shown.has_change_permission(request) or shown.has_add_permission(request)
    }
    assert writable == {"Connection", "Tenant", "User", "Group"}


def test_a_saved_form_cannot_move_an_operation(root: Client) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    response = root.post(f"{OPERATIONS}{row.pk}/change/", {"state": "retry"})
    assert response.status_code == 403
    assert Operation.objects.get(pk=row.pk).state == "review"


# --- lists ----------------------------------------------------------------------------------------


def test_the_list_answers_what_for_whom_since_when_and_why(root: Client) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    text = root.get(OPERATIONS).content.decode()
    assert f"/admin/operations/{row.pk}/" in text
    assert "contact.create hub/in-review v1" in text
    assert "Acme → portal" in text
    assert "may have happened" in text
    assert "5\xa0minutes" in text
    assert "No usable answer; it may have happened" in text


def test_unfinished_operations_are_shown_unless_said_otherwise(root: Client) -> None:
    rows = pages.one_of_each(pages.connection())
    finished = {rows[State.CONFIRMED].pk, rows[State.DISCARDED].pk}
    everything = {row.pk for row in rows.values()}
    assert listed(root, OPERATIONS) == everything - finished
    assert listed(root, f"{OPERATIONS}?state=all") == everything
    for state, row in rows.items():
        assert listed(root, f"{OPERATIONS}?state={state.value}") == {row.pk}


def test_filters_narrow_by_each_question(root: Client) -> None:
    one, two = pages.connection("one"), pages.connection("two")
    mine = pages.in_state(one, State.REVIEW)
    other = pages.operation(two, state_since=timezone.now() - timedelta(hours=2))
    assert listed(root, f"{OPERATIONS}?connection={one.pk}") == {mine.pk}
    assert listed(root, f"{OPERATIONS}?tenant={one.tenant_id}") == {mine.pk, other.pk}
    assert listed(root, f"{OPERATIONS}?tenant=0") == set()
    assert listed(root, f"{OPERATIONS}?action=contact.create") == {mine.pk, other.pk}
    assert listed(root, f"{OPERATIONS}?action=contact.delete") == set()
    assert listed(root, f"{OPERATIONS}?reason=unknown") == {mine.pk}
    assert listed(root, f"{OPERATIONS}?doubt=1") == {mine.pk}
    assert listed(root, f"{OPERATIONS}?age=1h") == {other.pk}


def test_search_is_exact_and_finds_by_each_name(root: Client) -> None:
    rows = pages.one_of_each(pages.connection())
    done = rows[State.CONFIRMED]
    for word in (str(done.pk), done.reference, done.operation_key, done.source_id, "41"):
        assert done.pk in listed(root, f"{OPERATIONS}?q={word}"), word
    for word in ("in-confirme", "nothing", "9" * 30, "٣", "%", "41'"):
        assert listed(root, f"{OPERATIONS}?q={word}") == set(), word
    assert root.get("/admin/hub/mapping/?q=in-confirmed").context["cl"].result_count == 1
    assert root.get("/admin/hub/mapping/?q=41").context["cl"].result_count == 1
    assert root.get("/admin/hub/mapping/?q=42").context["cl"].result_count == 0


def test_no_list_counts_whole_tables_or_loads_payloads(root: Client) -> None:
    pages.one_of_each(pages.connection())
    of_a_case = {'"hub_mapping"."values"', '"hub_attempt"."seen"'}
    heavy = {'"payload"', '"secrets"', *of_a_case}
    for model in admin.site._registry:
        if model._meta.app_label != "hub":
            continue
        address = reverse(f"admin:hub_{model._meta.model_name}_changelist")
        with CaptureQueriesContext(database) as seen:
            assert root.get(address).status_code == 200
        for query in (one["sql"] for one in seen.captured_queries):
            loaded = {name for name in heavy if name in query}
            # Of each case of the page the last look and its own mapping are judged by.
            assert not loaded - (of_a_case if model is ReviewCase else set()), query
            if query.startswith("SELECT COUNT(") and model.__name__ not in ("Connection", "Tenant"):
                assert f"LIMIT {base.COUNTED}" in query, query
        assert len(seen.captured_queries) <= 16, [q["sql"] for q in seen.captured_queries]


def test_fifty_cases_cost_the_list_what_one_costs(root: Client) -> None:
    """What is advised for each of them is asked of the rows all at once."""
    portal = pages.connection()

    def asked() -> int:
        with CaptureQueriesContext(database) as seen:
            root.get("/admin/hub/reviewcase/")
        return len(seen.captured_queries)

    def add(number: int) -> None:
        row = pages.operation(
            portal, f"c-{number}", state="review", maybe_executed=True, stream_busy=True
        )
        case = cases.open_case(
            "operation", row.pk, tenant_id=portal.tenant_id, connection_id=portal.pk,
            operation_id=row.pk, reason_code="found_different", summary="x", advice="link",
        )  # fmt: skip
        case.candidates.create(remote_ref=f"r{number}", seen_at=timezone.now())

    add(0)
    before = asked()
    for number in range(1, 50):
        add(number)
    assert asked() == before


def test_the_count_stops_at_its_cap(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "COUNTED", 3)
    portal = pages.connection()
    for number in range(5):
        pages.operation(portal, f"many-{number}")
    assert root.get(OPERATIONS).context["cl"].result_count == 3


# --- who may see ----------------------------------------------------------------------------------


def test_payloads_and_what_was_seen_need_the_right_to_decide(client: Client) -> None:
    rows = pages.one_of_each(pages.connection())
    row = rows[State.REVIEW]
    attempt = row.attempt_set.get()
    candidate = row.cases.get().candidates.get()
    pages_of_it = [
        f"/admin/operations/{row.pk}/",
        f"{OPERATIONS}{row.pk}/change/",
        f"/admin/hub/attempt/{attempt.pk}/change/",
        f"/admin/hub/candidate/{candidate.pk}/change/",
    ]
    client.force_login(pages.person("reader", "view_operation", "view_attempt", "view_candidate"))
    for address in pages_of_it:
        text = client.get(address).content.decode()
        assert "Okafor" not in text, address
        assert "&quot;a&quot;: 1" not in text, address
    client.force_login(
        pages.person("decider", "view_operation", "view_attempt", "view_candidate", "decide_case")
    )
    assert "Okafor" in client.get(pages_of_it[0]).content.decode()
    assert "&quot;a&quot;: 1" in client.get(pages_of_it[2]).content.decode()
    assert "Okafor" in client.get(pages_of_it[3]).content.decode()


@pytest.mark.parametrize(
    "address",
    ["/admin/", OPERATIONS, "/admin/operations/1/", "/admin/connections/1/test/"],
)
def test_strangers_are_sent_to_the_login(client: Client, address: str) -> None:
    response = client.get(address)
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/admin/login/")


def test_staff_without_the_right_sees_no_operation(client: Client) -> None:
    row = pages.operation(pages.connection())
    client.force_login(pages.person("new"))
    assert client.get(OPERATIONS).status_code == 403
    assert client.get(f"/admin/operations/{row.pk}/").status_code == 403


# --- the connection form --------------------------------------------------------------------------


def change(row: Connection) -> str:
    return f"/admin/hub/connection/{row.pk}/change/"


def values(client: Client, address: str) -> dict[str, Any]:
    """What a browser would send back for the form as it was shown."""
    form = client.get(address).context["adminform"].form
    given = {}
    for field in form:
        shown = field.value()
        if isinstance(shown, bool):
            if shown:
                given[field.html_name] = "on"
        elif shown is not None:
            given[field.html_name] = str(shown)
    return given


def problems(response: Any) -> dict[str, list[str]]:
    return dict(response.context["adminform"].form.errors)


def test_a_connection_is_added_with_its_secret_sealed(root: Client) -> None:
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    choose = root.get("/admin/hub/connection/add/").content.decode()
    assert "?integration=bitrix24" in choose
    address = "/admin/hub/connection/add/?integration=bitrix24"
    given = values(root, address) | {
        "tenant": tenant.pk,
        "name": "fresh",
        "account": "fresh.example.com",
        "base_url": "https://fresh.example.com",
        "secret__webhook": f"1/{pages.CANARY}",
    }
    response = root.post(address, given)
    assert response.status_code == 302, problems(response)
    row = Connection.objects.get(name="fresh")
    assert credentials.open_sealed(row.secrets)["webhook"].endswith(f"1/{pages.CANARY}")
    assert pages.CANARY not in row.secrets
    assert Gate.objects.filter(connection=row).exists()
    assert (row.numbers, row.limits) == ({}, {})


def test_a_secret_is_written_and_never_shown(root: Client) -> None:
    row = pages.connection()
    text = root.get(change(row)).content.decode()
    assert pages.CANARY not in text
    assert row.secrets not in text
    assert 'type="password" name="secret__webhook"' in text
    # Left blank, the stored one stays.
    given = values(root, change(row))
    assert root.post(change(row), given | {"label": "New title"}).status_code == 302
    row.refresh_from_db()
    assert row.label == "New title"
    assert credentials.open_sealed(row.secrets) == {"webhook": f"1/{pages.CANARY}"}
    # Given, it replaces the stored one, also where that does not open any more.
    Connection.objects.filter(pk=row.pk).update(secrets="not-sealed-with-our-keys")
    assert root.post(change(row), given | {"secret__webhook": "7/another1"}).status_code == 302
    row.refresh_from_db()
    assert credentials.open_sealed(row.secrets)["webhook"].endswith("7/another1")


def test_a_bad_secret_is_refused_beside_its_field_and_not_sent_back(root: Client) -> None:
    row = pages.connection()
    response = root.post(
        change(row), values(root, change(row)) | {"secret__webhook": f"no webhook {pages.CANARY}"}
    )
    assert "USER_ID/SECRET" in problems(response)["secret__webhook"][0]
    assert pages.CANARY not in response.content.decode()


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        ("base_url", "example.com", "https://"),
        ("base_url", "ftp://example.com", "https://"),
        ("base_url", "https://ann:pass@example.com", "secret"),
        ("base_url", "https://example.com:99999", "https://"),
        ("networks", "10.1.0.0/16, here", "here is no network"),
        ("proxy_url", "proxy:8080", "http://"),
        ("ca_file", "ca.pem", "full path"),
        ("max_in_flight", "0", "At least one"),
        ("options", "[1]", "braces"),
        ("number__contact.create__max_send", "0", "above 0"),
        ("number__contact.create__max_send", "-3", "above 0"),
        ("number__contact.create__max_send", "nan", "number"),
        ("number__contact.create__max_send", "soon", "number"),
        ("number__contact.create__max_send", "unknown", "must be known"),
        ("number__*__max_exec", "inf", "number"),
        ("limit__default__rate", "0", "above 0"),
        ("limit__default__burst", "0.5", "at least 1"),
    ],
)
def test_bad_input_is_answered_beside_its_field_and_nothing_is_lost(
    root: Client, field: str, given: str, said: str
) -> None:
    row = pages.connection()
    sent = values(root, change(row)) | {"label": "Typed before", field: given}
    response = root.post(change(row), sent)
    assert said in problems(response)[field][0]
    shown = response.context["adminform"].form
    assert shown["label"].value() == "Typed before"
    assert str(shown[field].value()) == given
    row.refresh_from_db()
    assert (row.label, row.numbers, row.limits) == ("", {}, {})


def test_a_secret_typed_beside_a_mistake_must_be_typed_again(root: Client) -> None:
    row = pages.connection()
    sent = values(root, change(row)) | {"base_url": "x", "secret__webhook": "1/typed-in-vain"}
    response = root.post(change(row), sent)
    assert "once more" in problems(response)["secret__webhook"][0]
    assert "typed-in-vain" not in response.content.decode()


def test_numbers_carry_their_source_and_date(root: Client) -> None:
    row = pages.connection()
    text = root.get(change(row)).content.decode()
    assert "Connector: 60 (Bitrix24 REST documentation, limits, 2026-08-21)" in text
    sent = values(root, change(row)) | {"number__contact.create__max_exec": "90,5"}
    response = root.post(change(row), sent)
    assert set(problems(response)) == {
        "number__contact.create__source",
        "number__contact.create__date",
    }
    sent |= {
        "number__contact.create__source": "mail of their support",
        "number__contact.create__date": "2026-11-01",
        "number__contact.create__index_lag": "unknown",
    }
    assert root.post(change(row), sent).status_code == 302
    row.refresh_from_db()
    origin = {"source": "mail of their support", "date": "2026-11-01"}
    assert row.numbers == {
        "contact.create": {
            "max_exec": {"value": 90.5, **origin},
            "index_lag": {"value": None, **origin},
        }
    }
    text = root.get(change(row)).content.decode()
    assert "max_exec 90.5 s" in text
    assert "mail of their support, 2026-11-01" in text
    # Emptied, the connector's own are in force again.
    names = ("max_exec", "index_lag", "source", "date")
    emptied = {f"number__contact.create__{name}": "" for name in names}
    assert root.post(change(row), values(root, change(row)) | emptied).status_code == 302
    row.refresh_from_db()
    assert row.numbers == {}


def test_limits_are_changed_dropped_and_taken_back(root: Client) -> None:
    row = pages.connection()
    origin = {"limit__default__source": "their plan", "limit__default__date": "2026-10-01"}
    sent = values(root, change(row)) | origin | {"limit__default__rate": "5"}
    assert root.post(change(row), sent).status_code == 302
    row.refresh_from_db()
    kept = {"source": "their plan", "date": "2026-10-01"}
    assert row.limits == {"default": {"rate": 5.0, **kept}}
    sent = values(root, change(row)) | {"limit__default__none": "on"}
    assert root.post(change(row), sent).status_code == 302
    row.refresh_from_db()
    assert row.limits == {"default": None}
    sent = values(root, change(row))
    del sent["limit__default__none"]
    assert root.post(change(row), sent).status_code == 302
    row.refresh_from_db()
    assert row.limits == {}


def test_stored_numbers_of_other_origin_survive_an_unrelated_change(root: Client) -> None:
    numbers = {"*": {"max_exec": 2}, "contact.delete": {"max_send": {"value": 3, "source": "s"}}}
    row = pages.connection(numbers=numbers, limits={"extra": {"rate": 1, "burst": 1}})
    response = root.post(change(row), values(root, change(row)) | {"contact": "x"})
    assert response.status_code == 302, problems(response)
    row.refresh_from_db()
    assert row.contact == "x"
    assert row.numbers == numbers
    assert row.limits == {"extra": {"rate": 1, "burst": 1}}


def test_what_a_connection_stands_for_is_fixed(root: Client) -> None:
    row = pages.connection()
    other = Tenant.objects.create(slug="globex", name="Globex")
    sent = values(root, change(row)) | {
        "account": "other.example.com",
        "tenant": other.pk,
        "integration": "probe",
    }
    assert root.post(change(row), sent).status_code == 302
    row.refresh_from_db()
    assert (row.account, row.tenant.slug, row.integration) == (
        "portal.example.com",
        "acme",
        "bitrix24",
    )


def test_a_save_undoes_nothing_that_happened_meanwhile(root: Client) -> None:
    """F130: the form was drawn, then workers opened the breaker and somebody changed a number."""
    row = pages.connection()
    sent = values(root, change(row)) | {"label": "New title"}
    assert gate.count_bad(row.pk, 5, threshold=5, pause=60, cap=60)
    gate.pause(row.pk, "credential", "They refuse us.")
    Bucket.objects.create(
        scope="portal.example.com:443", group="default", rate=2, burst=40, level=1.5,
        refreshed_at=timezone.now(),
    )  # fmt: skip
    Connection.objects.filter(pk=row.pk).update(
        max_in_flight=7, secrets="changed-by-a-rotation", retired_at=timezone.now()
    )
    stale = admin.site._registry[Connection]
    assert isinstance(stale, ConnectionAdmin)
    sent["max_in_flight"] = "7"
    assert root.post(change(row), sent).status_code == 302
    row.refresh_from_db()
    found = Gate.objects.get(connection=row)
    assert (found.breaker, found.pause_kind) == ("open", "credential")
    assert Bucket.objects.get().level == 1.5
    assert row.label == "New title"
    assert row.secrets == "changed-by-a-rotation"
    assert row.retired_at is not None


def test_only_changed_columns_are_written(root: Client) -> None:
    row = pages.connection()
    sent = values(root, change(row)) | {"contact": "their CRM team"}
    with CaptureQueriesContext(database) as seen:
        root.post(change(row), sent)
    written = [one["sql"] for one in seen.captured_queries if one["sql"].startswith('UPDATE "hub_')]
    assert len(written) == 1
    assert written[0].startswith('UPDATE "hub_connection" SET "contact" = ')
    assert written[0].count(" = ") == 2


def test_whoever_may_only_look_gets_no_form(client: Client) -> None:
    row = pages.connection()
    client.force_login(pages.person("reader", "view_connection"))
    text = client.get(change(row)).content.decode()
    assert "What each action is held to" in text
    assert 'name="secret__webhook"' not in text
    assert 'name="_save"' not in text
    assert client.post(change(row), {"label": "x"}).status_code == 403


def test_assumptions_and_classes_are_shown_with_where_they_are_set(root: Client) -> None:
    row = pages.connection(sole_writer=False)
    gate.degrade(row.pk, "contact.create", "find", "originId is ignored")
    text = root.get(change(row)).content.decode()
    for code in ("A1", "A2", "A3", "A4", "A5"):
        assert f"{code}: " in text
    assert "does not hold here" in text
    assert "b′: full state by id" in text
    assert "d: nothing to go by" in text
    assert "originId is ignored" in text


def test_code_that_is_not_installed_is_said_and_the_rest_can_be_edited(root: Client) -> None:
    row = pages.connection(integration="gone")
    response = root.get(change(row))
    assert "No integration &#x27;gone&#x27; is installed" in response.content.decode()
    assert root.post(change(row), values(root, change(row)) | {"label": "x"}).status_code == 302


# --- a million rows ------------------------------------------------------------------------------


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "asked", ["", "?state=failed", "?connection=1&reason=refused&age=1h", "?tenant=1&connection=1"]
)
def test_unfinished_operations_are_read_from_the_small_index(root: Client, asked: str) -> None:
    """SQLite takes a partial index only when its condition stands in the query as literals."""
    pages.one_of_each(pages.connection())
    with CaptureQueriesContext(database) as seen:
        root.get(OPERATIONS + asked)
    lists = [q["sql"] for q in seen.captured_queries if 'FROM "hub_operation"' in q["sql"]]
    assert len(lists) >= 2
    for sql in lists:
        with database.cursor() as cursor:
            cursor.execute("EXPLAIN QUERY PLAN " + sql)
            plan = [str(row[3]) for row in cursor.fetchall()]
        # The subquery is answered by the index alone, and what it found leads to the rows.
        assert [step for step in plan if "COVERING INDEX operation_by_state" in step], plan
        assert [step for step in plan if "rowid=?" in step and "operation" in step], plan


def offered(client: Client, address: str, filter_name: str = "reason") -> set[str]:
    """The codes a list offers to filter by."""
    found = client.get(address).context["cl"].filter_specs
    return {
        str(code)
        for one in found if getattr(one, "parameter_name", "") == filter_name
        for code, _label in one.lookup_choices
    }  # fmt: skip


def test_reasons_are_offered_that_are_there(root: Client) -> None:
    portal = pages.connection()
    pages.one_of_each(portal)
    Operation.objects.filter(state="failed").update(reason_code="refused")
    Operation.objects.filter(state="confirmed").update(reason_code="found")
    assert offered(root, OPERATIONS) == {"refused", "unknown"}
    assert offered(root, f"{OPERATIONS}?state=failed") == {"refused"}
    # Of what is finished there are millions: what they can have ended with is known.
    ended = set(words.FINAL_REASONS[State.CONFIRMED])
    assert offered(root, f"{OPERATIONS}?state=confirmed") == ended
    assert offered(root, f"{OPERATIONS}?state=all") > {"refused", "unknown"} | ended
    # What was asked for stays, so that it can be taken back.
    assert "stale" in offered(root, f"{OPERATIONS}?reason=stale")
    assert offered(root, "/admin/hub/reviewcase/") == {"found_different"}
    assert offered(root, "/admin/hub/reviewcase/?closed=1") == {"found_different"}


@pytest.mark.parametrize("words_of_it", ["drop table", "x' OR 1=1 --", "failed' --", "nothing"])
def test_a_forged_state_finds_no_reason_and_breaks_nothing(root: Client, words_of_it: str) -> None:
    pages.one_of_each(pages.connection())
    assert root.get(OPERATIONS, {"state": words_of_it}).status_code == 200


def test_final_reasons_have_words_and_are_given_somewhere(root: Client) -> None:
    source = "".join(one.read_text() for one in (Path(base.__file__).parents[1]).glob("*.py"))
    for codes in words.FINAL_REASONS.values():
        for code in codes:
            assert code in words.REASONS
            assert f'"{code}"' in source or f"'{code}'" in source, code
    # One that is new is offered all the same, as soon as it was given.
    row = pages.in_state(pages.connection(), State.CONFIRMED)
    Operation.objects.filter(pk=row.pk).update(reason_code="brand_new")
    assert "brand_new" in offered(root, f"{OPERATIONS}?state=confirmed")
    assert "brand_new" not in offered(root, f"{OPERATIONS}?state=discarded")


@pytest.mark.sqlite
def test_reasons_are_read_from_the_small_index(root: Client) -> None:
    pages.one_of_each(pages.connection())
    with CaptureQueriesContext(database) as seen:
        base.unfinished_reasons(["pending", "failed"])
    with database.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + seen.captured_queries[0]["sql"])
        plan = [str(row[3]) for row in cursor.fetchall()]
    read = [step for step in plan if "hub_operation" in step]
    assert len(read) == 2
    assert all("INDEX operation_by_state (state=?)" in step for step in read), plan


def test_only_the_newest_of_each_state_are_searched_for_reasons(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "EACH", 1)
    portal = pages.connection()
    for hours, reason in ((3, "busy"), (1, "refused")):
        pages.operation(
            portal, reason, reason_code=reason,
            state_since=timezone.now() - timedelta(hours=hours),
        )  # fmt: skip
    assert base.unfinished_reasons(["pending"]) == {"refused"}


# --- one row of the engine's ----------------------------------------------------------------------


def test_every_row_of_an_operation_leads_back_to_its_page_and_has_no_second_history(
    root: Client,
) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    case = row.cases.get()
    found = {
        "operation": row.pk,
        "attempt": row.attempt_set.get().pk,
        "evidence": row.evidence_set.get().pk,
        "reviewcase": case.pk,
        "candidate": case.candidates.get().pk,
        "decision": row.decisions.get().pk,
    }
    for model, pk in found.items():
        text = root.get(f"/admin/hub/{model}/{pk}/change/").content.decode()
        assert f'<a href="/admin/operations/{row.pk}/">To the page of operation' in text, model
        assert "historylink" not in text, model
        assert "closelink" not in text, model
    settings = root.get(f"/admin/hub/connection/{row.connection_id}/change/").content.decode()
    assert "historylink" in settings, "what people changed there is kept by Django's own history"


def test_filters_without_an_index_look_through_the_newest_and_say_so(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "REACH", 2)
    portal = pages.connection()
    rows = [pages.operation(portal, f"n-{n}", reason_code="refused") for n in range(4)]
    address = f"{OPERATIONS}?state=all&reason=refused"
    assert listed(root, address) == {row.pk for row in rows[2:]}
    assert "Filtered among the newest 2 rows" in root.get(address).content.decode()
    assert listed(root, f"{OPERATIONS}?state=all") == {row.pk for row in rows}
    assert listed(root, f"{OPERATIONS}?reason=refused") == {row.pk for row in rows}


def test_a_literal_takes_plain_words_only() -> None:
    for word in ("it's", "a b", "", "état", "x;"):
        with pytest.raises(ValueError, match="plain word"):
            Literal(word).as_sql(None, None)


def test_a_connector_may_tidy_a_pasted_secret(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = registry.connector_class("bitrix24")
    monkeypatch.setattr(
        connector, "tidy_secret", lambda name, text: "/".join(text.strip("/").split("/")[-2:]),
        raising=False,
    )  # fmt: skip
    row = pages.connection()
    pasted = f"https://portal.example.com/rest/1/{pages.CANARY}/"
    sent = values(root, change(row)) | {"secret__webhook": pasted}
    assert root.post(change(row), sent).status_code == 302
    row.refresh_from_db()
    assert credentials.open_sealed(row.secrets) == {"webhook": f"1/{pages.CANARY}"}
