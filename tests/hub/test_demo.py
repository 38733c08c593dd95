"""The demo is made once, goes on where it was, and stays out of production."""

import io
import stat
import time
from collections import Counter
from typing import Any
from urllib.error import URLError

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import CommandError, call_command
from django.test import RequestFactory
from django.urls import reverse

from hub import checks, credentials
from hub.delivery import Drain
from hub.management import demo
from hub.models import Connection, Gate, Operation, Tenant
from hub.policy import Limits
from hub.states import MOVING
from hub.tuning import Tuning
from integrations.bitrix24.simulator.client import Simulator

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings, tmp_path, monkeypatch):
    settings.HUB_HOME = tmp_path
    monkeypatch.delenv("HUB_DEMO_PASSWORD", raising=False)
    return tmp_path


def tell(**options):
    orders: list[dict[str, Any]] = []
    waits: list[float] = []

    def wait(seconds):
        waits.append(seconds)
        return len(waits) <= options.get("stop_after", 10_000)

    fresh = demo.tell(say=pytest.fail, wait=wait, order=orders.append)
    return fresh, orders, waits


def test_it_makes_tenants_connections_and_logins():
    made = demo.ensure()
    assert {t.slug for t in Tenant.objects.all()} >= {"acme", "globex"}
    for name, slug in (("bitrix24-demo", "acme"), ("bitrix24-globex", "globex")):
        row = Connection.objects.get(name=name)
        assert row.tenant.slug == slug
        assert row.base_url == f"{demo.simulator_url()}/{slug}"
        assert Gate.objects.filter(connection=row).exists()
        assert credentials.open_sealed(row.secrets)["webhook"].startswith("1/")
    for login in demo.LOGINS:
        assert authenticate(RequestFactory().post("/"), username=login, password=made.password)
    assert Connection.objects.filter(integration="probe").count() == 1


def test_its_numbers_nest():
    demo.ensure()
    assert checks.wrong_times() == []


def test_made_again_it_changes_nothing_but_the_port(settings):
    first = demo.ensure()
    before = {row.name: (row.pk, row.secrets) for row in Connection.objects.all()}
    settings.HUB_PORT = 9100
    second = demo.ensure()
    assert second.created == []
    assert second.password == first.password
    assert {row.name: (row.pk, row.secrets) for row in Connection.objects.all()} == before
    assert Connection.objects.get(name="bitrix24-demo").base_url == "http://127.0.0.1:9101/acme"


def test_the_password_is_generated_once_and_kept_to_oneself(home):
    demo.ensure()
    path = home / "demo_password"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().strip()) >= 12


def test_a_password_of_ones_own_replaces_it(monkeypatch):
    demo.ensure()
    monkeypatch.setenv("HUB_DEMO_PASSWORD", "chosen-by-me")
    assert demo.ensure().password == "chosen-by-me"
    assert authenticate(RequestFactory().post("/"), username="agent", password="chosen-by-me")


def test_logins_can_reach_the_admin_and_only_admin_may_do_everything(client):
    demo.ensure()
    users = {user.username: user for user in get_user_model().objects.all()}
    assert [name for name, user in users.items() if user.is_superuser] == ["admin"]
    for user in users.values():
        client.force_login(user)
        assert client.get(reverse("admin:index")).status_code == 200
    assert users["agent"].has_perm("hub.decide_case")
    assert not users["auditor"].has_perm("hub.decide_case")
    assert not users["agent"].has_perm("hub.send_again")
    assert users["senior"].has_perm("hub.send_again")


def test_the_demo_is_refused_in_production(settings):
    demo.ensure()
    found = {m.id for m in checks.production_rows()}
    assert found == {"hub.E022", "hub.E023"}
    settings.HUB_LOCAL = False
    with pytest.raises(CommandError, match="local run"):
        call_command("hub_demo")


def test_the_command_says_what_it_made_and_the_logins(home):
    said = io.StringIO()
    call_command("hub_demo", stdout=said)
    assert "made connection bitrix24-demo" in said.getvalue()
    assert (home / "demo_password").read_text().strip() in said.getvalue()


# --- the story ---


def test_the_story_is_the_same_each_time_and_bounded():
    assert list(demo.scenes()) == list(demo.scenes())
    assert 40 <= len(list(demo.scenes())) <= 100
    assert sum(demo.pause_before(scene.number) for scene in demo.scenes()) <= 600


def test_every_scene_is_submitted_once():
    demo.ensure()
    fresh, orders, _ = tell()
    assert fresh == len(list(demo.scenes())) == Operation.objects.count()
    assert orders
    again = tell()
    assert again == (0, [], [])


def test_stopped_in_the_middle_it_goes_on_behind_its_last_scene():
    demo.ensure()
    total = len(list(demo.scenes()))
    first, _, _ = tell(stop_after=10)
    rest, _, _ = tell()
    assert (first, first + rest) == (10, total)


def test_both_tenants_are_in_it_and_every_fault_names_its_contact():
    demo.ensure()
    _, orders, _ = tell()
    tenants = Counter(Operation.objects.values_list("tenant__slug", flat=True))
    assert tenants["acme"] > 15
    assert tenants["globex"] > 15
    references = set(Operation.objects.values_list("reference", flat=True))
    assert all(order["reference"] in references for order in orders)
    wanted = {
        "answer_lost_after_commit",
        "late_commit",
        "throttle",
        "field_ignored",
        "duplicate_execution",
        "access_denied",
        "coded_5xx_after_commit",
    }
    assert wanted <= {order["fault"] for order in orders}


def test_what_drops_a_connection_a_class_stays_away_from_the_two_that_people_use():
    demo.ensure()
    _, orders, _ = tell()
    assert {o["portal"] for o in orders if o["fault"] == "field_ignored"} == {"archive"}


def test_a_stand_in_that_does_not_answer_loses_only_its_fault():
    demo.ensure()
    said: list[str] = []

    def down(order):
        raise URLError("refused")

    fresh = demo.tell(say=said.append, wait=lambda _: True, order=down)
    assert said
    assert fresh == Operation.objects.count() == len(list(demo.scenes()))


@pytest.mark.sqlite  # the demo is a local run
@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_told_to_the_end_most_settles_by_itself_and_the_rest_waits_for_people(monkeypatch):
    with Simulator() as portal:
        monkeypatch.setattr(demo, "simulator_url", lambda: portal.url)
        demo.ensure()
        demo.tell(say=pytest.fail, wait=lambda _: True)
        limits = Limits(
            margin=0.5, retry_base=0.2, retry_cap=2.0, look_schedule=(0.3, 0.6, 1.0, 2.0)
        )
        tuning = Tuning(limits=limits, lease_addend=2.5, sweep_every=0.3, poll_interval=0.05)
        moving = Operation.objects.filter(state__in=[state.value for state in MOVING])
        end = time.monotonic() + 60
        while moving.exists():
            assert time.monotonic() < end, list(moving.values_list("source_id", "state"))
            Drain(tuning=tuning, budget=2.0).run()
        effects = portal.ledger()

    found = Counter(Operation.objects.values_list("state", flat=True))
    assert set(found) == {"confirmed", "review"}
    assert found["confirmed"] > 8 * found["review"]
    reasons = set(Operation.objects.filter(state="review").values_list("reason_code", flat=True))
    assert len(reasons) >= 4
    made = Counter(e["reference"] for e in effects if e["method"] == "crm.item.add")
    twice = [reference for reference, count in made.items() if count > 1]
    # The one the stand-in was told to make twice; the hub made none.
    ordered = [scene for scene in demo.scenes() if "duplicate_execution" in str(scene.faults)]
    assert [Operation.objects.get(reference=r).source_id for r in twice] == [
        scene.source_id for scene in ordered
    ]
