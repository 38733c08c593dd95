"""The page of an operation and the buttons: of an operation, and of a connection."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from hub import cases, gate
from hub.models import Bucket, Connection, Decision, Gate, Operation
from hub.panel import operation as page
from hub.panel import words
from hub.states import FINAL, MOVING, State
from tests.harness.world import World
from tests.hub import pages


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
    assert set(hidden) == {"seen_state", "seen_token"}
    return hidden | given


# --- what the page of an operation shows ---------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
def test_each_state_is_said_in_words(root: Client, state: State) -> None:
    row = pages.in_state(pages.connection(), state)
    text = root.get(story(row)).content.decode()
    assert f"hub-state-{state.value}" in text
    assert words.state_means(state, doubt=row.maybe_executed).replace("'", "&#x27;") in text
    assert ("◐ may have happened" in text) == row.maybe_executed
    assert "Zenobia" in text
    assert ("Waits for" in text) == (state in MOVING)


@pytest.mark.parametrize("state", list(State))
def test_every_button_stays_in_place_and_says_why_it_cannot_be_pressed(
    root: Client, state: State
) -> None:
    row = pages.in_state(pages.connection(), state)
    found = root.get(story(row)).context["buttons"]
    assert [one.action for one in found] == [
        "look_again", "retry", "send_again", "link", "discard", "take_over",
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
    assert 'Okafor</td><td data-label="Theirs">Other</td><td>≠ different</td>' in text
    assert 'Zenobia</td><td data-label="Theirs">Zenobia</td><td>= equal</td>' in text
    assert 'name="remote_ref" value="6043"' in text
    link = next(one for one in response.context["buttons"] if one.action == "link")
    assert link.recommended
    assert "recommended" in text


def test_the_timeline_is_one_order_of_time(root: Client) -> None:
    row = pages.one_of_each(pages.connection())[State.REVIEW]
    lines, cut = page.timeline(row, values=True)
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
    lines, cut = page.timeline(row, values=False)
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
    client.force_login(pages.person("agent", "view_operation", "decide_case"))
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
