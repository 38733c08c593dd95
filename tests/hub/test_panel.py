"""The page of an operation and the buttons: of an operation, and of a connection."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from hub import cases, gate
from hub.contract import Checked, Finding, Kind, Write
from hub.models import Bucket, Connection, Decision, Gate, Operation, ReviewCase
from hub.models import Mapping as MappingRow
from hub.panel import choices, drift, there, values, words
from hub.panel import connection as connection_page
from hub.panel import operation as page
from hub.states import FINAL, MOVING, Outcome, Purpose, State
from tests.harness.world import World
from tests.hub import pages, rows


@pytest.fixture
def root(client: Client, db: None) -> Client:
    client.force_login(pages.person("root", root=True))
    return client


def story(row: Operation | int) -> str:
    return f"/admin/operations/{row if isinstance(row, int) else row.pk}/"


def form_of(client: Client, row: Operation | int, **given: str) -> dict[str, str]:
    """The hidden fields of the page as it is now, with what a person adds."""
    text = client.get(story(row)).content.decode()
    hidden = dict(re.findall(r'type="hidden" name="(seen_\w+)" value="([^"]*)"', text))
    assert set(hidden) == {"seen_state", "seen_token", "seen_decision", "seen_digest"}
    return hidden | given


# --- what the page of an operation shows ---------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
def test_each_state_is_said_in_words(root: Client, state: State) -> None:
    row = pages.in_state(pages.connection(), state)
    text = root.get(story(row)).content.decode()
    assert f"hub-state-{state.value}" in text
    assert words.state_means(state, doubt=row.maybe_executed).replace("'", "&#x27;") in text
    assert ("◐ may have happened" in text) == row.maybe_executed
    assert "set, ends in ia" in text
    assert ("Waits for" in text) == (state in MOVING)


@pytest.mark.parametrize("state", list(State))
def test_every_button_stays_in_place_and_says_why_it_cannot_be_pressed(
    root: Client, state: State
) -> None:
    row = pages.in_state(pages.connection(), state)
    found = root.get(story(row)).context["buttons"]
    assert [one.action for one in found] == [
        "look_again", "retry", "send_again", "link", "confirm", "discard", "take_over",
        "not_same", "may_be", "take", "note",
    ]  # fmt: skip
    text = root.get(story(row)).content.decode()
    for one in found:
        assert one.effect
        button = re.search(rf'<button[^>]*value="{one.action}"[^>]*>', text)
        assert button
        assert ("disabled" in button[0]) == bool(one.why_not)
        assert f'aria-describedby="about-{one.action}"' in button[0]
    if state in (State.REVIEW, State.FAILED):
        assert any(not one.why_not for one in found), "a case is a dead end"


def test_the_case_its_candidates_and_the_advice_are_shown_side_by_side(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    response = root.get(story(row))
    text = " ".join(response.content.decode().split())
    assert "An object with our reference was found, but it differs" in text
    assert "A3: A request that left us is executed" in text
    assert "Candidate <strong>6043</strong>: 1 field differs" in text
    shown = " ".join(pages.with_values(root, story(row)).split())
    assert 'Okafor</td><td data-label="Theirs">Other</td><td>≠ different</td>' in shown
    assert 'Zenobia</td><td data-label="Theirs">Zenobia</td><td>= equal</td>' in shown
    assert 'name="remote_ref" value="6043"' in text
    link = next(one for one in response.context["buttons"] if one.action == "link")
    assert link.recommended
    assert "recommended" in text


def test_the_timeline_is_one_order_of_time(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    lines, cut = page.timeline(row, values=True, technical=True)
    assert not cut
    assert [line.kind for line in lines] == ["made", "attempt", "evidence", "decision"]
    assert sorted(line.at for line in lines) == [line.at for line in lines]
    attempt = lines[1]
    assert attempt.title == "Sending: no usable answer: it may have been executed"
    assert ("how far it got", "sent, or partly sent; no answer was recorded") in attempt.details
    assert lines[3].title == "luis decided: Look again"


def test_a_long_timeline_is_cut_and_says_so(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LINES", 3)
    row = pages.in_state(pages.connection(), State.UNCERTAIN)
    now = timezone.now()
    for token in range(1, 6):
        row.attempt_set.create(token=token, purpose="consult", worker="w", claimed_at=now)
    lines, cut = page.timeline(row, values=False, technical=False)
    assert cut
    assert len(lines) == 4
    assert "Only the newest 3 lines" in root.get(story(row)).content.decode()


def test_an_address_a_remote_gave_becomes_a_link_only_when_it_is_one(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    candidate = row.cases.get().candidates.get()
    candidate.url = "javascript:alert(1)"
    candidate.save()
    assert "javascript:" not in root.get(story(row)).content.decode()
    candidate.url = "https://portal.example.com/6043"
    candidate.save()
    assert 'href="https://portal.example.com/6043"' in root.get(story(row)).content.decode()


def test_what_a_remote_said_is_text_never_markup(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    evil = "<script>alert(1)</script>"
    Operation.objects.filter(pk=row.pk).update(reason_text=evil)
    row.attempt_set.update(verdict=evil, seen=evil)
    case = row.cases.get()
    case.candidates.update(remote_ref=evil, fields='{"last_name": "' + evil + '"}')
    text = root.get(story(row)).content.decode()
    assert evil not in text
    assert "&lt;script&gt;" in text


def test_there_is_no_such_operation(root: Client) -> None:
    assert root.get(story(999_999)).status_code == 404
    assert root.post(story(999_999), {"action": "discard", "reason": "x"}).status_code == 404


# --- deciding ------------------------------------------------------------------------------------


def test_a_decision_without_a_reason_changes_nothing_and_loses_nothing(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    sent = form_of(root, row, action="link", reason="  ", remote_ref="6043")
    response = root.post(story(row), sent)
    assert response.status_code == 400
    text = response.content.decode()
    assert "Say in a few words why" in text
    assert 'value="6043" checked' in text
    assert Operation.objects.get(pk=row.pk).state == "review"


def test_a_link_without_an_object_asks_for_one(root: Client) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    response = root.post(story(row), form_of(root, row, action="link", reason="I know it"))
    assert response.status_code == 400
    text = response.content.decode()
    assert "Choose a candidate, or enter the id" in text
    assert "I know it</textarea>" in text


@pytest.mark.parametrize("sent", [{"action": "explode"}, {"action": ""}, {}])
def test_an_unknown_decision_is_refused(root: Client, sent: dict[str, str]) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    assert root.post(story(row), form_of(root, row, reason="x", **sent)).status_code == 400
    assert Operation.objects.get(pk=row.pk).state == "review"


def test_a_stale_page_changes_nothing_says_what_moved_and_keeps_the_reason(root: Client) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    sent = form_of(root, row, action="discard", reason="Not wanted any more")
    assert root.post(story(row), sent).status_code == 302
    response = root.post(story(row), sent)
    assert response.status_code == 409
    text = response.content.decode()
    assert "It has moved on since your page was drawn: it is discarded now." in text
    assert "Not wanted any more</textarea>" in text
    assert [one.done for one in Decision.objects.order_by("pk")] == [True, False]


@pytest.mark.parametrize("token", ["", "x", "99"])
def test_a_page_without_its_token_changes_nothing(root: Client, token: str) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    sent = {"action": "discard", "reason": "x", "seen_state": "review", "seen_token": token}
    assert root.post(story(row), sent).status_code == 409
    assert Operation.objects.get(pk=row.pk).state == "review"


def test_who_may_only_look_can_decide_nothing(client: Client, db: None) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    client.force_login(pages.person("reader", "view_operation"))
    found = client.get(story(row)).context["buttons"]
    assert all(one.why_not for one in found)
    assert "You lack the permission for it." in client.get(story(row)).content.decode()
    sent = form_of(client, row, action="discard", reason="x")
    assert client.post(story(row), sent).status_code == 403
    assert Operation.objects.get(pk=row.pk).state == "review"


def test_sending_again_in_doubt_is_a_permission_of_its_own(client: Client, db: None) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    client.force_login(pages.person("agent", "view_operation", "decide_case", "work_case"))
    shown = {one.action: one.why_not for one in client.get(story(row)).context["buttons"]}
    assert shown["send_again"] == "You lack the permission for it."
    assert shown["look_again"] == ""
    sent = form_of(client, row, action="send_again", reason="x")
    assert client.post(story(row), sent).status_code == 403
    client.force_login(pages.person("senior", "view_operation", "decide_case", "send_again"))
    response = client.post(story(row), sent)
    assert response.status_code == 302
    new = Operation.objects.get(supersedes=row)
    assert response.headers["Location"] == story(new)
    assert new.generation == 2
    assert story(new) in client.get(story(row)).content.decode()


def test_a_decision_needs_the_csrf_token(db: None) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(pages.person("root", root=True))
    sent = {"action": "discard", "reason": "x", "seen_state": "review", "seen_token": "0"}
    assert strict.post(story(row), sent).status_code == 403
    assert strict.post("/admin/connections/1/resume/").status_code == 403


@pytest.mark.parametrize("name", ["test", "resume"])
def test_what_changes_something_is_never_a_get(root: Client, name: str) -> None:
    row = pages.connection()
    assert root.get(f"/admin/connections/{row.pk}/{name}/").status_code == 405


@pytest.mark.processes
def test_a_case_is_settled_by_its_buttons(world: World, client: Client) -> None:
    """From a lost answer to a link, with the stand-in really asked (H5, protocol §16)."""
    stand_in = world.stand_in()
    portal = world.connect(stand_in)
    client.force_login(pages.person("root", root=True))
    # It was made there, the answer was lost, and a person changed it before anybody looked.
    stand_in.simulator.fault("answer_lost_after_commit", method="crm.item.add")
    submitted = world.submit(portal)
    world.drain(budget=0.5)
    for item in stand_in.simulator.items("acme"):
        stand_in.simulator.person("update", item["id"], {"lastName": "Jones"}, portal="acme")
    world.settle()
    assert world.state(submitted) == "review", world.story(submitted)
    pk = submitted.operation_id
    response = client.get(story(pk))
    candidate = response.context["candidates"][0]
    assert {cell.field for cell in candidate.cells if cell.differs} == {"last_name"}
    # Look again: the hub asks, sees the same, and comes back with the case.
    again = form_of(client, pk, action="look_again", reason="Perhaps it has caught up")
    assert client.post(story(pk), again).status_code == 302
    world.settle()
    assert world.state(submitted) == "review"
    # An id that is not there is refused in words; nothing typed is lost.
    wrong = form_of(client, pk, action="link", reason="It is this one", other_ref="999999")
    response = client.post(story(pk), wrong)
    assert response.status_code == 409
    assert "There is no object 999999" in response.content.decode()
    assert "It is this one</textarea>" in response.content.decode()
    # The candidate is read once more, and the operation is confirmed with it.
    ref = candidate.row.remote_ref
    right = form_of(client, pk, action="link", reason="It is this one", remote_ref=ref)
    response = client.post(story(pk), right, follow=True)
    assert f"It is confirmed with object {ref}." in response.content.decode()
    assert world.state(submitted) == "confirmed"
    assert len(stand_in.simulator.items("acme")) == 1


# --- a connection's buttons ----------------------------------------------------------------------


def button(row: Connection, name: str) -> str:
    return f"/admin/connections/{row.pk}/{name}/"


def test_pausing_needs_a_reason_and_a_moment_to_come(root: Client) -> None:
    row = pages.connection()
    response = root.post(button(row, "pause"), {"reason": "", "until": "2020-01-01T10:00"})
    assert set(response.context["form"].errors) == {"reason", "until"}
    assert "2020-01-01T10:00" in response.content.decode()
    assert Gate.objects.get(pk=row.pk).paused_at is None


def test_pause_and_resume_are_said_on_every_page_that_shows_the_gate(root: Client) -> None:
    row = pages.connection()
    until = timezone.now() + timedelta(days=1)
    sent = {"reason": "They move house", "until": until.strftime("%Y-%m-%dT%H:%M")}
    assert root.post(button(row, "pause"), sent).status_code == 302
    found = Gate.objects.get(pk=row.pk)
    assert (found.pause_kind, found.pause_reason, found.paused_by) == (
        "person",
        "They move house",
        "root",
    )
    assert found.paused_until == until.replace(second=0, microsecond=0)
    waiting = pages.operation(row)
    for address in (
        f"/admin/hub/connection/{row.pk}/change/", "/admin/hub/connection/", "/admin/",
        story(waiting),
    ):  # fmt: skip
        assert "They move house" in root.get(address).content.decode(), address
    assert root.post(button(row, "resume")).status_code == 302
    assert Gate.objects.get(pk=row.pk).paused_at is None
    said = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert said == ["Paused: They move house", "Resumed."]
    assert "It was not paused" in root.post(button(row, "resume"), follow=True).content.decode()


def test_a_connection_is_retired_only_when_nothing_waits_and_can_come_back(root: Client) -> None:
    row = pages.connection()
    waiting = pages.operation(row)
    response = root.post(button(row, "retire"), {"reason": "Moved away"})
    assert response.status_code == 200
    assert "1 operation is not finished" in response.content.decode()
    assert "Moved away" in response.content.decode()
    Operation.objects.filter(pk=waiting.pk).update(state="discarded")
    assert root.post(button(row, "retire"), {"reason": ""}).status_code == 200
    row.refresh_from_db()
    assert row.retired_at is None
    assert root.post(button(row, "retire"), {"reason": "Moved away"}).status_code == 302
    row.refresh_from_db()
    assert row.retired_at is not None
    assert root.post(button(row, "retire"), {"reason": "They came back"}).status_code == 302
    row.refresh_from_db()
    assert row.retired_at is None


@pytest.mark.parametrize("name", ["test", "pause", "resume", "retire"])
def test_buttons_need_the_right_to_change_the_connection(
    client: Client, db: None, name: str
) -> None:
    row = pages.connection()
    client.force_login(pages.person("reader", "view_connection"))
    assert client.post(button(row, name), {"reason": "x"}).status_code == 403
    text = client.get(f"/admin/hub/connection/{row.pk}/change/").content.decode()
    assert button(row, name) not in text


def test_a_remote_that_cannot_be_reached_is_a_finding(root: Client) -> None:
    row = pages.connection(base_url="http://127.0.0.1:9", networks="127.0.0.0/8")
    response = root.post(button(row, "test"))
    assert response.status_code == 200
    assert not response.context["tested"].ok
    # A remote that is down proves nothing against it.
    assert Gate.objects.get(pk=row.pk).degraded == {}
    assert "The test was cut off" in response.content.decode()


def test_an_address_that_is_not_allowed_is_a_finding(root: Client) -> None:
    row = pages.connection(base_url="http://127.0.0.1:9")
    response = root.post(button(row, "test"))
    assert not response.context["tested"].ok
    assert "127.0.0.1" in response.content.decode()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"integration": "gone"}, "is installed"),
        ({"secrets": "sealed-elsewhere"}, "do not open with the keys in force"),
        ({"secrets": ""}, "webhook"),
    ],
)
def test_settings_that_cannot_work_are_a_finding(
    root: Client, columns: dict[str, Any], said: str
) -> None:
    response = root.post(button(pages.connection(**columns), "test"))
    assert response.status_code == 200
    assert not response.context["tested"].ok
    assert said in response.content.decode()


@pytest.mark.processes
def test_the_connection_test_asks_the_remote_and_creates_nothing(
    world: World, client: Client
) -> None:
    stand_in = world.stand_in()
    row = world.connect(stand_in, limits={"default": {"rate": 50, "burst": 60}})
    client.force_login(pages.person("root", root=True))
    gate.degrade(row.pk, "contact.create", "find", "originId was ignored")
    response = client.post(button(row, "test"))
    tested = response.context["tested"]
    assert tested.ok, tested.findings
    assert {one.name for one in tested.findings} >= {"user", "scope", "fields", "filter"}
    assert Gate.objects.get(pk=row.pk).degraded == {}
    assert stand_in.simulator.ledger() == []
    bucket = Bucket.objects.get()
    assert bucket.level <= 60 - 5, "the calls of the test count like any others"
    # A foreign body is a finding, not a crash, and no proof against the action.
    stand_in.simulator.fault("html_body", method="profile")
    response = client.post(button(row, "test"))
    assert not response.context["tested"].ok
    assert Gate.objects.get(pk=row.pk).degraded == {}
    # What the remote itself denies drops the action's class, until a test is green again.
    stand_in.simulator.fault("access_denied", method="crm.item.list")
    response = client.post(button(row, "test"))
    assert not response.context["tested"].ok
    assert "contact.create" in Gate.objects.get(pk=row.pk).degraded
    assert "contact.create" in response.content.decode()
    assert client.post(button(row, "test")).context["tested"].ok
    assert Gate.objects.get(pk=row.pk).degraded == {}


# --- the overview --------------------------------------------------------------------------------


def test_the_overview_says_what_waits_for_whom_since_when_and_why(root: Client) -> None:
    portal = pages.connection()
    rows = pages.one_of_each(portal)
    Operation.objects.filter(pk=rows[State.PENDING].pk).update(
        next_at=timezone.now() - timedelta(hours=2), parked=False
    )
    response = root.get("/admin/")
    text = " ".join(response.content.decode().replace("\xa0", " ").split())
    counts = {one.state: one.count for one in response.context["tallies"]}
    assert counts == {state.value: 1 for state in State if state not in FINAL}
    assert "due for 2 hours" in text
    assert "An object with our reference was found, but it differs" in text
    assert "drain-1" in text
    assert "late: nothing may be moving" in text
    gate.pause(portal.pk, "credential", "They refuse us.")
    assert (
        "the remote refuses our credential: They refuse us." in root.get("/admin/").content.decode()
    )


def test_the_overview_of_a_new_installation_leads_to_the_first_connection(root: Client) -> None:
    text = root.get("/admin/").content.decode()
    assert "Connect the first system" in text
    assert "Nothing to decide." in text
    assert "No worker has been seen" in text


# --- cases that are no operation's ---------------------------------------------------------------


def test_a_question_about_no_operation_is_closed_with_a_reason(root: Client) -> None:
    portal = pages.connection()
    row = pages.operation(portal)
    case = cases.open_case(
        "drift", row.pk, tenant_id=portal.tenant_id, connection_id=portal.pk,
        operation_id=row.pk, reason_code="drift", summary="Other data came.",
    )  # fmt: skip
    assert "Other data came." in root.get(story(row)).content.decode()
    text = root.get(f"/admin/hub/reviewcase/{case.pk}/change/").content.decode()
    address = f"/admin/cases/{case.pk}/close/"
    assert address in text
    assert root.post(address, {"reason": " "}).status_code == 200
    assert root.post(address, {"reason": "The source was wrong"}).status_code == 302
    case.refresh_from_db()
    assert case.closed_by == "root"
    decision = Decision.objects.get()
    assert (decision.action, decision.reason, decision.done) == (
        "close",
        "The source was wrong",
        True,
    )
    # Once closed, it stays as it was closed.
    assert root.post(address, {"reason": "again"}).status_code == 302
    assert Decision.objects.count() == 1
    assert "root decided: Close the case" in root.get(story(row)).content.decode()


def test_a_case_about_an_operation_closes_only_with_it(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    case = row.cases.get()
    text = root.get(f"/admin/hub/reviewcase/{case.pk}/change/").content.decode()
    assert story(row) in text
    assert "/close/" not in text
    root.post(f"/admin/cases/{case.pk}/close/", {"reason": "x"})
    case.refresh_from_db()
    assert case.closed_at is None


def test_a_connection_that_goes_on_answers_its_case(root: Client) -> None:
    row = pages.connection()
    gate.pause(row.pk, "credential", "They refuse us.")
    case = cases.about_connection(row.pk, "credential", "They refuse us.")
    text = root.get(f"/admin/hub/reviewcase/{case.pk}/change/").content.decode()
    assert f"/admin/hub/connection/{row.pk}/change/" in text
    root.post(button(row, "resume"))
    case.refresh_from_db()
    assert case.closed_by == "root"


def test_closing_a_case_needs_the_right_to_decide(client: Client, db: None) -> None:
    row = pages.connection()
    case = cases.about_connection(row.pk, "credential", "They refuse us.")
    client.force_login(pages.person("reader", "view_reviewcase"))
    assert client.post(f"/admin/cases/{case.pk}/close/", {"reason": "x"}).status_code == 403
    text = client.get(f"/admin/hub/reviewcase/{case.pk}/change/").content.decode()
    assert f"/admin/cases/{case.pk}/close/" not in text


def test_two_answers_to_which_object_are_one_too_many(root: Client) -> None:
    """A candidate chosen and another id typed: nobody may guess which one is meant."""
    row = pages.in_state(pages.connection(), State.REVIEW)
    given = form_of(root, row, action="link", reason="that one", remote_ref="10", other_ref="11")
    answer = root.post(story(row), given)
    assert answer.status_code == 400
    assert "leave only the one that is meant" in answer.content.decode()
    row.refresh_from_db()
    assert row.state == State.REVIEW


def test_the_case_of_a_paused_connection_stays_while_it_is_paused(root: Client) -> None:
    portal = pages.connection()
    gate.pause(portal.pk, "credential", "they refuse our credential")
    case = cases.about_connection(portal.pk, "credential", "They refuse our credential.")
    address = f"/admin/cases/{case.pk}/close/"
    text = root.post(address, {"reason": "seen"}, follow=True).content.decode()
    assert "still paused" in text
    case.refresh_from_db()
    assert case.closed_at is None
    gate.resume(portal.pk)
    root.post(address, {"reason": "resumed"})
    case.refresh_from_db()
    assert case.closed_by == "root"


# --- a doubt the hub cannot look into -------------------------------------------------------------


def in_doubt_without_a_look(**columns: Any) -> Operation:
    """A create whose answer was lost at a remote that ignores our reference: class d."""
    portal = pages.connection("old", account="old.example.com", base_url="https://old.example.com")
    gate.degrade(portal.pk, "contact.create", "find", "originId was ignored")
    row = pages.in_state(portal, State.REVIEW)
    Operation.objects.filter(pk=row.pk).update(
        payload='{"last_name": "Okafor", "phone": [{"value": "+49 30 1", "type": "WORK"}]}',
        **columns,
    )
    cases.open_case(
        "operation", row.pk, tenant_id=portal.tenant_id, connection_id=portal.pk,
        operation_id=row.pk, reason_code="unknown", summary="No answer.", advice="link",
    )  # fmt: skip
    return Operation.objects.get(pk=row.pk)


def test_what_nobody_can_look_up_says_what_to_search_for(root: Client) -> None:
    sent = timezone.now() - timedelta(minutes=9)
    row = in_doubt_without_a_look(first_sent_at=sent, last_byte_at=sent)
    response = root.get(story(row))
    search = response.context["search"]
    assert search.by == (("last_name", "set, ends in or"), ("phone", "set, ends in  1"))
    assert "Okafor" in pages.with_values(root, story(row))
    assert (search.account, search.address) == ("old.example.com", "https://old.example.com")
    assert search.reference == row.reference
    text = " ".join(response.content.decode().split())
    assert "Search there for a new contact with these values." in text
    assert '<a href="https://old.example.com" rel="noreferrer noopener">old.example.com</a>' in text
    assert "Look there yourself, as below; then: <strong>Link</strong>" in text
    assert "It would have happened between" in text
    for said in (
        "If it is there: enter its id below and press Link.",
        "If it is not there: press Send again, although it may have happened.",
        "If it is no longer wanted: press Discard.",
    ):
        assert said in text


def test_who_may_not_decide_sees_what_to_search_by_and_no_value(client: Client, db: None) -> None:
    row = in_doubt_without_a_look()
    client.force_login(pages.person("reader", "view_operation"))
    text = client.get(story(row)).content.decode()
    assert "last_name" in text
    assert "Okafor" not in text
    assert "press Link" not in text
    client.force_login(pages.person("agent", "view_operation", "decide_case"))
    text = client.get(story(row)).content.decode()
    assert "press Link" in text
    assert "press Send again" not in text, "a button this person may not press"


def test_what_the_hub_can_look_up_needs_no_search_of_a_person(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    assert root.get(story(row)).context["search"] is None


@pytest.mark.parametrize("base_url", ["ftp://old.example.com", "javascript:alert(1)", "//x", ""])
def test_an_address_that_is_no_page_is_no_link(root: Client, base_url: str) -> None:
    row = in_doubt_without_a_look()
    Connection.objects.filter(pk=row.connection_id).update(base_url=base_url)
    assert f'href="{base_url}"' not in root.get(story(row)).content.decode()


@pytest.mark.parametrize(
    ("kind", "mapped", "said"),
    [
        (Kind.UPDATE, "r1", "Open d r1 there and see whether it has these values."),
        (Kind.UPDATE, "", "Search there for the d and see whether it has these values."),
        (Kind.COMMAND, "r1", "Open d r1 there and see whether it has these values."),
        (Kind.DELETE, "r1", "See there whether d r1 is gone."),
    ],
)
def test_a_change_names_the_object_to_look_at(
    db: None, monkeypatch: pytest.MonkeyPatch, kind: Kind, mapped: str, said: str
) -> None:
    rows.install(monkeypatch)
    where = rows.connection()
    gate.ensure(where)
    if mapped:
        rows.mapping(where, object_type="d", remote_ref=mapped)
    row = rows.operation(where, State.REVIEW, action="d.update", maybe_executed=True)
    monkeypatch.setattr(there.remote, "declared", lambda *_asked: Write(kind=kind))
    found = there.search(row, {}, choices.of_operation(row), values=True)
    assert found is not None
    assert found.task == said
    assert found.reference == ""
    assert (said[:3] == "See") == any("If it is gone" in one for one in found.then)


# --- a recommendation is one of the buttons -------------------------------------------------------


def a_case(portal: Connection, subject: str, advice: str, row: Operation | None) -> ReviewCase:
    number = portal.pk if row is None else row.pk
    return cases.open_case(
        subject, number, tenant_id=portal.tenant_id, connection_id=portal.pk,
        operation_id=None if row is None else row.pk, reason_code="drift", summary="As it came.",
        advice=advice,
    )  # fmt: skip


EVERY_ADVICE = ["", "look_again", "retry", "link", "discard", "correct", "take_over", "send_again"]


@pytest.mark.parametrize("advice", EVERY_ADVICE)
def test_no_page_recommends_a_button_that_is_not_on_it(
    client: Client, db: None, advice: str
) -> None:
    """Every subject, every state, every advice, whoever looks: page, case and list."""
    portal, other = pages.connection(), pages.connection("paused")
    gate.pause(other.pk, "credential", "They refuse us.")
    found = [a_case(other, "connection", advice, None), a_case(portal, "connection", advice, None)]
    for state in State:
        row = pages.in_state(portal, state)
        found += [a_case(portal, kind, advice, row) for kind in ("operation", "drift", "duplicate")]
    looks = ("view_operation", "view_reviewcase", "view_connection")
    people = [
        pages.person("reader", *looks),
        pages.person("agent", *looks, "decide_case"),
        pages.person("root", root=True),
    ]
    for who in people:
        client.force_login(who)
        for case in found:
            settled = choices.of_case(ReviewCase.objects.get(pk=case.pk), who)
            buttons, button = settled.buttons, settled.advice.button
            page_of_it = client.get(f"/admin/hub/reviewcase/{case.pk}/change/")
            shown = page_of_it.context["advice"].button
            assert shown == button
            if button is None:
                continue
            assert not button.why_not
            assert button in buttons
            text = client.get(button.address).content.decode()
            if case.subject == "operation":
                assert re.search(rf'<button[^>]*value="{button.action}"(?![^>]*disabled)', text)
            elif button.action != choices.CLOSE:
                assert button.label in text
                assert f"/connections/{case.connection_id}/{button.action}/" in text
            else:
                assert f"{button.label}</button>" in text
    text = client.get("/admin/hub/reviewcase/").content.decode()
    named = set(re.findall(r'field-advised">([^<]+)<', text))
    assert named == {str(choices.of_case(case).advice) or "–" for case in found}


def test_the_case_of_a_connection_recommends_the_test_and_never_a_retry(root: Client) -> None:
    portal = pages.connection()
    gate.pause(portal.pk, "credential", "They refuse us.")
    case = cases.about_connection(portal.pk, "credential", "They refuse us.")
    text = root.get(f"/admin/hub/reviewcase/{case.pk}/change/").content.decode()
    assert "refuses our access since" in text
    assert "<strong>Recommended:</strong> Test connection" in " ".join(text.split())
    assert "Retry" not in text
    assert "Retry" not in root.get("/admin/hub/reviewcase/").content.decode()
    gate.resume(portal.pk)
    text = root.get(f"/admin/hub/reviewcase/{case.pk}/change/").content.decode()
    assert "<strong>Recommended:</strong> Close this case" in " ".join(text.split())


def test_an_object_that_is_tied_elsewhere_is_not_recommended_for_a_link(root: Client) -> None:
    portal = pages.connection()
    row = pages.one_of_each(portal)[State.REVIEW]
    assert root.get(story(row)).context["advice"].button.action == "link"
    MappingRow.objects.create(
        tenant=portal.tenant, connection=portal, object_type="contact", source_system="hub",
        source_id="somebody-else", remote_ref="6043", updated_at=timezone.now(),
    )  # fmt: skip
    response = root.get(story(row))
    text = response.content.decode()
    assert response.context["advice"].button is None
    assert "tied to hub/somebody-else already" in text
    assert "Do not send; find out which link is right." in text
    assert re.search(r'value="6043" disabled', text)
    # And the other way round: this record is another object's.
    MappingRow.objects.filter(source_id="somebody-else").update(
        source_id=row.source_id, remote_ref="77"
    )
    response = root.get(story(row))
    assert response.context["advice"].button is None
    assert "this record is tied to 77 already" in response.content.decode()


# --- drift, side by side --------------------------------------------------------------------------


def drifted(came: str, **columns: Any) -> tuple[Operation, ReviewCase]:
    portal = pages.connection()
    row = pages.operation(portal, **columns)
    case = a_case(portal, "drift", "correct", row)
    if came:
        cases.keep_submitted(row.pk, came)
    return row, case


def test_both_payloads_of_a_drift_stand_side_by_side(root: Client) -> None:
    row, case = drifted('{"first_name": "Zenobia", "email": ["z@example.com"], "post": "CEO"}')
    for address in (f"/admin/hub/reviewcase/{case.pk}/change/", story(row)):
        text = " ".join(pages.with_values(root, address).split())
        assert "3 fields differ · 1 field is equal" in text
        for field, stored, again in (
            ("email", "not submitted", '<ul class="hub-value"><li>z@example.com</li></ul>'),
            ("post", "not submitted", "CEO"),
            ("last_name", "Okafor", "not submitted"),
        ):
            assert (
                f'<th scope="row">{field}</th><td data-label="Stored">{stored}</td>'
                f'<td data-label="Submitted again">{again}</td>'
            ) in text, address
        assert "first_name</th><td data-label" not in text.replace("Ours", "")
    assert "Submitted again with other data" in root.get(story(row)).content.decode()


def test_who_may_not_decide_sees_which_fields_differ_and_no_value(client: Client, db: None) -> None:
    row, case = drifted('{"first_name": "Zenobia", "last_name": "Bloggs"}')
    client.force_login(pages.person("reader", "view_operation", "view_reviewcase", "view_evidence"))
    fact = row.evidence_set.get()
    for address in (
        f"/admin/hub/reviewcase/{case.pk}/change/", story(row),
        f"/admin/hub/evidence/{fact.pk}/change/",
    ):  # fmt: skip
        text = client.get(address).content.decode()
        assert "Bloggs" not in text, address
        assert "Okafor" not in text, address
    assert "last_name" in client.get(story(row)).content.decode()


def test_what_was_not_kept_of_a_drift_is_said(root: Client) -> None:
    _row, case = drifted("")
    text = root.get(f"/admin/hub/reviewcase/{case.pk}/change/").content.decode()
    assert "What came the second time was not kept" in text


def test_a_source_that_repeats_its_mistake_fills_no_table(db: None) -> None:
    row, _case = drifted('{"last_name": "1"}')
    for number in (1, 1, 2, 2, 3, 4, 5, 6, 7):
        cases.keep_submitted(row.pk, json.dumps({"last_name": str(number)}))
    assert row.evidence_set.count() == cases.KEPT


def test_no_secret_and_no_endless_text_of_a_drift_is_kept(db: None) -> None:
    row, _case = drifted('{"last_name": "x", "password": "hunter2hunter2"}')
    many = {f"field_{number:04}": "y" * 500 for number in range(100)}
    cases.keep_submitted(row.pk, json.dumps(many))
    kept = list(row.evidence_set.order_by("pk").values_list("data", flat=True))
    assert "hunter2" not in kept[0]
    assert len(kept[1]) < cases.LONGEST
    assert "field_0099" in kept[1]
    assert [len(one.rows) for one in drift.came_again(row, values=True)] == [102, 3]


# --- what waits at a gate -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["credential", "certificate", "person"])
@pytest.mark.parametrize("state", [State.RETRY, State.PENDING, State.UNCERTAIN, State.ACCEPTED])
def test_what_waits_at_a_paused_connection_says_what_opens_it(
    root: Client, kind: str, state: State
) -> None:
    portal = pages.connection()
    row = pages.in_state(portal, state)
    gate.pause(portal.pk, kind, "They refuse us.")
    text = root.get(story(row)).content.decode()
    assert "by itself" not in text
    assert "nothing to do" not in text
    assert "Nothing goes on here until its connection is open again." in text
    assert "press" in text
    assert "Resume" in text
    assert "Next run" not in text


def test_a_pause_that_ends_by_itself_is_no_work_for_a_person(root: Client) -> None:
    portal = pages.connection()
    row = pages.in_state(portal, State.RETRY)
    gate.pause(portal.pk, "person", "They move", until=timezone.now() + timedelta(hours=1))
    assert "The hub repeats it by itself" in root.get(story(row)).content.decode()
    assert not root.get("/admin/").context["needs"]


def test_a_decision_at_a_paused_connection_says_that_it_waits(root: Client) -> None:
    portal = pages.connection()
    row = pages.in_state(portal, State.FAILED)
    gate.pause(portal.pk, "credential", "They refuse us.")
    sent = form_of(root, row, action="retry", reason="corrected")
    text = root.post(story(row), sent, follow=True).content.decode()
    assert "It is sent again." in text
    assert '<li class="warning">Nothing goes on here until' in text


def test_the_overview_leads_with_what_needs_a_person(root: Client) -> None:
    text = root.get("/admin/").content.decode()
    assert "Nothing needs a person just now." in text
    portal, other = pages.connection(), pages.connection("paused")
    pages.one_of_each(portal)
    gate.pause(other.pk, "credential", "They refuse us.")
    # A paused connection and its own case are one thing to do, not two.
    cases.about_connection(other.pk, "credential", "They refuse us.")
    response = root.get("/admin/")
    needs = response.context["needs"]
    assert (needs.questions, needs.paused) == (1, 1)
    text = response.content.decode()
    assert "<strong>1</strong> open question<" in text
    assert "<strong>1</strong> paused connection<" in text
    assert text.index("What needs a person") < text.index("What is not finished")
    assert "enter a credential they accept" in text
    Connection.objects.filter(pk=other.pk).update(retired_at=timezone.now())
    assert root.get("/admin/").context["needs"].paused == 0


def test_the_overview_counts_for_each_what_they_may_see(client: Client, db: None) -> None:
    portal = pages.connection()
    gate.pause(portal.pk, "credential", "They refuse us.")
    cases.about_connection(portal.pk, "credential", "They refuse us.")
    client.force_login(pages.person("agent", "view_reviewcase"))
    assert (needs := client.get("/admin/").context["needs"]).questions == 1
    assert needs.paused == 0
    client.force_login(pages.person("nobody"))
    assert "What needs a person" not in client.get("/admin/").content.decode()


# --- the form of a decision -----------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["", "  ", "x" * 2001])
def test_a_reason_that_will_not_do_is_told_beside_its_field(root: Client, reason: str) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    sent = form_of(root, row, action="link", reason=reason, other_ref="4711")
    response = root.post(story(row), sent)
    assert response.status_code == 400
    text = response.content.decode()
    beside = re.search(r'id="error-reason">([^<]+)</strong>\s*<textarea([^>]*)>([^<]*)<', text)
    assert beside
    assert beside[1]
    assert 'aria-describedby="error-reason"' in beside[2]
    assert 'aria-invalid="true"' in beside[2]
    assert beside[3].strip() == reason.strip()
    assert 'name="other_ref" id="id_other_ref" maxlength="255" value="4711"' in text
    assert Operation.objects.get(pk=row.pk).state == "review"


def test_a_reason_as_long_as_the_field_takes_is_kept_whole(root: Client) -> None:
    """A browser counts a line's end as one character and sends two."""
    row = pages.in_state(pages.connection(), State.REVIEW)
    sent = form_of(root, row, action="discard", reason="\r\n".join(["x" * 99] * 20))
    assert root.post(story(row), sent).status_code == 302
    assert len(Decision.objects.get().reason) == 1999


def test_which_object_is_asked_beside_its_field_and_both_answers_stay(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    sent = form_of(root, row, action="link", reason="that one", remote_ref="6043", other_ref="11")
    text = root.post(story(row), sent).content.decode()
    assert 'id="error-ref">You chose 6043 and entered 11' in text
    assert 'value="6043" checked' in text
    assert 'value="11" aria-invalid="true" aria-describedby="error-ref"' in text
    assert ">that one</textarea>" in text


def test_what_may_not_be_done_now_is_folded_away(root: Client) -> None:
    row = pages.in_state(pages.connection(), State.REVIEW)
    response = root.get(story(row))
    text = response.content.decode()
    folded = re.findall(r'<details class="hub-not-now">.*?</details>', text, re.DOTALL)
    assert len(folded) == 1
    for one in response.context["buttons"]:
        assert (f'value="{one.action}"' in folded[0]) == bool(one.why_not), one.action
        assert one.why_not in folded[0]
    assert '<details class="hub-not-now" open' not in text


# --- words ----------------------------------------------------------------------------------------


def test_no_line_of_the_timeline_says_a_thing_twice() -> None:
    assert words.tried("consult", "L") == "Looked it up there"
    assert words.tried("poll", "L") == "Asked about the job there"
    assert words.tried("send", "") == "Sending: under way"
    for purpose in Purpose:
        for outcome in Outcome:
            said = words.tried(purpose.value, outcome.value).lower()
            assert not re.search(r"\blook\w*: look", said), said


def test_durations_are_never_nothing() -> None:
    now = timezone.now()
    for seconds, said in (
        (0, "0 seconds"), (1, "1 second"), (12.9, "12 seconds"), (59, "59 seconds"),
        (60, "1 minute"), (3700, "1 hour, 1 minute"), (-5, "0 seconds"),
    ):  # fmt: skip
        assert words.ago(now - timedelta(seconds=seconds), now).replace("\xa0", " ") == said


def test_a_page_of_this_moment_counts_seconds(root: Client) -> None:
    portal = pages.connection()
    row = pages.one_of_each(portal)[State.REVIEW]
    Operation.objects.update(state_since=timezone.now() - timedelta(seconds=12))
    a_case(portal, "drift", "correct", pages.operation(portal, "9"))
    for address in (story(row), "/admin/", "/admin/hub/operation/", "/admin/hub/reviewcase/"):
        text = root.get(address).content.decode().replace("\xa0", " ")
        assert "0 minutes" not in text, address
        assert re.search(r"\d+ seconds", text), address
    assert "for 1" in root.get(story(row)).content.decode()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"), ("", "–"), ([], "–"), ({}, "–"), (0, "0"), (False, "no"), (True, "yes"),
        ("<b>", "&lt;b&gt;"), (1.5, "1.5"),
        (["a", "<b>"], "<li>a</li><li>&lt;b&gt;</li>"),
        (
            [{"value": "+49", "type": "WORK"}, {"value": "+50"}, {"value": "", "type": "HOME"}],
            "<li>+49 (WORK)</li><li>+50</li>"
            '<li><ul class="hub-value"><li>value: –</li><li>type: HOME</li></ul></li>',
        ),
        ({"city": "Bonn", "<x>": ["1"]}, "<li>city: Bonn</li><li>&lt;x&gt;: <ul "),
        (list(range(103)), "<li>99</li><li>and 3 more</li>"),
    ],
)  # fmt: skip
def test_values_read_as_lists_not_as_json(value: Any, said: str) -> None:
    shown = values.shown(value)
    assert said in shown
    assert "[" not in shown
    assert "{" not in shown


def test_values_that_lie_deep_come_to_an_end() -> None:
    deep: Any = "x"
    for _turn in range(500):
        deep = [deep]
    assert values.shown(deep).count("<ul") == values.DEEPEST


def test_phones_are_a_list_on_the_page_and_beside_a_candidate(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    phones = '{"phone": [{"value": "+49 30 1", "type": "WORK"}]}'
    Operation.objects.filter(pk=row.pk).update(payload=phones)
    row.cases.get().candidates.update(fields=phones, differences="[]")
    text = pages.with_values(root, story(row))
    assert text.count("<li>+49 30 1 (WORK)</li>") == 3
    assert "&quot;value&quot;" not in text


# --- another account behind a connection ----------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "declared", "other"),
    [
        ("crm.example.com", "crm.example.com", False),
        ("CRM.example.com/", "https://crm.example.com", False),
        ("127.0.0.1:8001/acme", "acme", False),
        ("", "acme", False),
        ("crm.example.com", "other.example.com", True),
        ("127.0.0.1:8001/globex", "acme", True),
        ("127.0.0.1:8001/not-acme", "acme", True),
    ],
)
def test_an_account_may_be_declared_without_its_host(
    reported: str, declared: str, other: bool
) -> None:
    assert connection_page.is_other(reported, declared) is other


def test_another_account_stands_out_and_proves_nothing(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = pages.connection(account="acme.example.com")
    gate.degrade(row.pk, "contact.create", "find", "originId was ignored")
    gate.pause(row.pk, "credential", "They refuse us.")
    case = cases.about_connection(row.pk, "credential", "They refuse us.")

    async def answered(*_given: Any) -> Checked:
        return Checked((Finding("user", True, "We are user 1."),), (), "globex.example.com")

    monkeypatch.setattr(connection_page, "_check", answered)
    response = root.post(button(row, "test"))
    text = " ".join(response.content.decode().split())
    assert "All is well" not in text
    assert (
        '<div class="hub-alarm" role="alert"><p><strong>This is another account.</strong>' in text
    )
    assert "There the account is globex.example.com; this connection stands for acme" in text
    assert "make another connection for it" in text
    assert "/resume/" not in text
    assert "then Resume" not in text
    assert "Leave the connection paused" in text
    assert "contact.create" in Gate.objects.get(pk=row.pk).degraded
    case.refresh_from_db()
    assert case.closed_at is None
    said = LogEntry.objects.get().change_message
    assert said == "Tested: there the account is globex.example.com, not acme.example.com."
