"""A person's decisions: what may be done, why not, and what comes of it (protocol §16)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from hub import credentials, remote, review
from hub.contract import BadPayload, Kind, SafetyClass, Write
from hub.models import (
    Candidate,
    Connection,
    Decision,
    Installation,
    Mapping,
    Operation,
    ReviewCase,
    Scope,
    Tenant,
)
from hub.states import RESTING, State
from tests.harness.remote import FakeRemote
from tests.hub import rows

pytestmark = pytest.mark.django_db

STATES = [state.value for state in State]
CLASSES = [
    "a.create", "a.update", "al.create", "b.create", "b.update", "b.delete", "bp.create",
    "bp.update", "bp.delete", "c.create", "d.create", "d.update", "a.note", "d.note", "job.run",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _integration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows.install(monkeypatch)
    Installation.objects.get_or_create(pk=1)


@pytest.fixture
def there() -> Iterator[FakeRemote]:
    made = FakeRemote().start()
    yield made
    made.stop()


@pytest.fixture
def crm(there: FakeRemote) -> Connection:
    return _connect(there)


def _connect(there: FakeRemote, account: str = "acme", **more: Any) -> Connection:
    return rows.connection(
        account=account,
        base_url=there.base_url(account),
        networks="127.0.0.0/8",
        secrets=credentials.seal(dict(there.secrets)),
        **more,
    )


def _act(row: Operation, action: str, **more: Any) -> review.Decided:
    given: dict[str, Any] = {
        "by": "ann",
        "reason": "because",
        "seen_state": row.state,
        "seen_token": row.lease_token,
    }
    return review.act(row.pk, action, **{**given, **more})


def _everything() -> tuple[Any, ...]:
    """All a decision may change."""
    return tuple(
        sorted(map(str, model.objects.values()))
        for model in (Operation, ReviewCase, Mapping, Candidate)
    )


def _expected(state: str, doubt: bool, action: Write) -> set[str]:
    """What protocol §16 and §5 (rows 18, 20, 21, 24) allow."""
    harmless = action.safety in (
        SafetyClass.A, SafetyClass.A_LOOK, SafetyClass.B, SafetyClass.B_PRIME,
    )  # fmt: skip
    match state:
        case "review":
            found = {"discard", "confirm", "take", "note"}
            if action.can_look:
                found.add("look_again")
            if action.kind is not Kind.DELETE:
                found.add("link")
            found.add("retry" if not doubt or harmless else "send_again")
            return found
        case "failed":
            return {"retry", "discard", "take", "note"}
        case "pending" | "retry" if not doubt:
            return {"discard"}
        case "retry":
            return {"take_over"}
        case "uncertain":
            return {"take_over", "look_again"} if action.can_look else {"take_over"}
        case "accepted":
            return {"take_over"}
        case _:
            return set()


AFTER = {
    "look_again": "uncertain",
    "retry": "retry",
    "send_again": "discarded",
    "link": "confirmed",
    "confirm": "confirmed",
    "discard": "discarded",
    "take_over": "review",
}


def _doubts(state: str) -> tuple[bool, ...]:
    if state in ("uncertain",):
        return (True,)
    return (False,) if state in ("confirmed", "failed", "accepted") else (False, True)


@pytest.mark.parametrize("state", STATES)
def test_every_button_is_enabled_or_says_why_not(crm: Connection, state: str) -> None:
    """Every action, in every state, for every class; what is shown is what is done or refused."""
    for number, action in enumerate(CLASSES):
        declared = remote.declared(crm, action)
        for doubt in _doubts(state):
            row = rows.operation(
                crm, state, action=action, source_id=f"{number}-{doubt}", maybe_executed=doubt
            )
            shown = review.choices(row)
            assert [one.action for one in shown] == list(review.ACTIONS)
            for one in shown:
                assert one.enabled != bool(one.why_not), one
                assert one.effect.strip(), one
            enabled = {one.action for one in shown if one.enabled}
            assert enabled == _expected(state, doubt, declared), (action, state, doubt)
            before = _everything()
            for one in shown:
                if not one.enabled:
                    decided = _act(row, one.action, remote_ref="1")
                    assert not decided.done
                    assert decided.text
            assert _everything() == before, "a refused decision changes nothing"
            refused = Decision.objects.filter(operation=row)
            assert refused.count() == len(shown) - len(enabled)
            assert not refused.filter(done=True).exists()


@pytest.mark.parametrize("state", ["review", "failed", "pending", "retry", "uncertain", "accepted"])
def test_every_enabled_button_does_what_it_says(
    crm: Connection, there: FakeRemote, state: str
) -> None:
    for number, action in enumerate(CLASSES):
        declared = remote.declared(crm, action)
        for doubt in _doubts(state):
            for what in _expected(state, doubt, declared) - {"take", "note"}:
                _one_decision(crm, there, state, action, doubt, what, f"{number}-{doubt}-{what}")


def _one_decision(
    crm: Connection,
    there: FakeRemote,
    state: str,
    action: str,
    doubt: bool,
    what: str,
    source_id: str,
) -> None:
    row = rows.operation(
        crm, state, action=action, source_id=source_id, maybe_executed=doubt, attempts=5, lapses=2
    )
    ref = there.seed("acme", {"name": "Ann"}, reference=row.reference, version=1)
    decided = _act(
        row, what, remote_ref=ref if what in ("link", "confirm") and "delete" not in action else ""
    )
    case = (action, state, doubt, what, decided.text)
    assert decided.done, case
    after = Operation.objects.get(pk=row.pk)
    assert after.state == AFTER[what], case
    assert after.lease_token == row.lease_token + 1, case
    assert after.reason_text.strip() or what == "look_again", case
    open_cases = ReviewCase.objects.filter(subject_id=row.pk, closed_at=None).count()
    assert open_cases == (1 if State(after.state) in RESTING else 0), case
    record = Decision.objects.get(operation=row)
    assert (record.done, record.by_name, record.reason, record.seen_state, record.seen_token) == (
        True, "ann", "because", state, row.lease_token,
    ), case  # fmt: skip
    # Doubt is cleared by proof alone, and stays on record when it is withdrawn.
    if what in ("link", "confirm"):
        assert not after.maybe_executed, case
        assert after.remote_ref == ref or not after.yields_ref, case
        if declared_kind(crm, action) in (Kind.CREATE, Kind.UPDATE):
            tied = Mapping.objects.get(connection=crm, source_id=source_id)
            assert tied.remote_ref == ref, case
    elif what == "look_again" or (what == "take_over" and state != "retry"):
        assert after.maybe_executed, case
    else:
        assert after.maybe_executed == doubt, case
    if what == "retry":
        assert (after.attempts, after.lapses, after.next_at <= rows.ago(-1)) == (0, 0, True), case
    if what == "send_again":
        new = Operation.objects.get(pk=decided.operation_id)
        assert new.pk != row.pk
        assert (new.generation, new.supersedes_id, new.state, new.maybe_executed) == (
            2, row.pk, "pending", False,
        ), case  # fmt: skip
        assert new.doubt_lifted, case
        assert new.remote_key != row.remote_key, case
        assert new.operation_key == row.operation_key, case
        if declared_kind(crm, action) is Kind.CREATE:
            assert new.reference == row.reference, case


def declared_kind(where: Connection, action: str) -> Kind:
    return remote.declared(where, action).kind


# --- what is asked of every decision --------------------------------------------------------------


def test_a_decision_takes_a_reason(crm: Connection) -> None:
    row = rows.operation(crm, "review")
    for reason in ("", "  \n"):
        with pytest.raises(BadPayload, match="reason"):
            _act(row, "discard", reason=reason)
    with pytest.raises(BadPayload, match="decision"):
        _act(row, "delete_it")
    with pytest.raises(BadPayload, match="no operation"):
        review.act(10**9, "discard", by="a", reason="b", seen_state="review", seen_token=1)
    assert Operation.objects.get(pk=row.pk).state == "review"


def _user(name: str, *permissions: str) -> User:
    user = User.objects.create_user(name)
    for codename in permissions:
        user.user_permissions.add(Permission.objects.get(codename=codename))
    for tenant in Tenant.objects.all():
        Scope.objects.create(user=user, tenant=tenant)
    return User.objects.get(pk=user.pk)


def test_sending_again_what_may_have_happened_is_a_permission_of_its_own(crm: Connection) -> None:
    row = rows.operation(crm, "review", action="c.create", maybe_executed=True)
    for user in (_user("reader"), _user("ann", "decide_case", "discard_doubt")):
        with pytest.raises(PermissionError):
            _act(row, "send_again", user=user, by="")
    assert Operation.objects.get(pk=row.pk).state == "review"
    bob = _user("bob", "send_again")
    assert _act(row, "send_again", user=bob, by="").done
    assert Decision.objects.get(done=True).by == bob
    assert {one.permission for one in review.choices(row) if one.action == "send_again"} == {
        "hub.send_again"
    }


def test_without_permission_nothing_is_decided(crm: Connection) -> None:
    row = rows.operation(crm, "review")
    with pytest.raises(review.Lacking) as refusal:
        _act(row, "discard", user=_user("reader"), by="")
    assert refusal.value.permission == "hub.decide_case"
    told = Decision.objects.get()
    assert (told.by_name, told.action, told.done) == ("reader", "discard", False)
    assert _act(row, "discard", user=_user("ann", "decide_case"), by="").done


@pytest.mark.parametrize("change", [{"seen_token": 0}, {"seen_state": "uncertain"}], ids=str)
def test_a_stale_page_changes_nothing(crm: Connection, change: dict[str, Any]) -> None:
    """F110."""
    row = rows.operation(crm, "review")
    before = _everything()
    decided = _act(row, "discard", **change)
    assert not decided.done
    assert "moved on" in decided.text
    assert _everything() == before
    assert Decision.objects.get().done is False


def test_a_double_click_is_one_decision(crm: Connection) -> None:
    """F110: the second is told who was first, and with what."""
    row = rows.operation(crm, "review")
    assert _act(row, "discard", by="ann").done
    second = _act(row, "retry", by="bob")
    assert not second.done
    assert "ann" in second.text
    assert "discard" in second.text
    assert Operation.objects.get(pk=row.pk).state == "discarded"
    assert Decision.objects.filter(done=True).count() == 1


def test_a_looked_for_operation_is_not_asked_twice(crm: Connection) -> None:
    """Somebody is looking right now: looking sooner would change nothing."""
    row = rows.operation(crm, "uncertain", action="c.create", lease_until=rows.ago(-30))
    assert not _act(row, "look_again").done
    idle = rows.operation(
        crm, "uncertain", action="c.create", source_id="2", next_at=rows.ago(-900)
    )
    assert _act(idle, "look_again").done
    assert Operation.objects.get(pk=idle.pk).next_at <= rows.ago(-1)


# --- stale versions, dead keys, code that is gone -------------------------------------------------


@pytest.mark.parametrize("state", ["failed", "review"])
def test_an_older_version_is_not_sent_over_a_newer(crm: Connection, state: str) -> None:
    """F118: a newer one has been sent; nothing brings the older one back."""
    row = rows.operation(crm, state, version=1)
    rows.operation(crm, "confirmed", version=2)
    choices = {one.action: one for one in review.choices(row)}
    assert "newer version" in choices["retry"].why_not
    assert not _act(row, "retry").done
    assert choices["discard"].enabled


def test_an_older_version_in_doubt_is_not_sent_again_over_a_newer(crm: Connection) -> None:
    row = rows.operation(crm, "review", action="d.update", version=1, maybe_executed=True)
    rows.operation(crm, "confirmed", action="d.update", version=2)
    assert not _act(row, "send_again").done
    assert Operation.objects.count() == 2


def test_a_dead_key_makes_a_repeat_a_decision_of_its_own(crm: Connection) -> None:
    """F52."""
    row = rows.operation(
        crm, "review", action="a.create", maybe_executed=True, first_sent_at=rows.ago(3600)
    )
    enabled = {one.action for one in review.choices(row) if one.enabled}
    assert "retry" not in enabled
    assert "send_again" in enabled


def test_without_its_code_only_discarding_is_left(crm: Connection) -> None:
    """F117."""
    row = rows.operation(crm, "review", maybe_executed=True)
    Operation.objects.filter(pk=row.pk).update(action="bp.gone")
    row.refresh_from_db()
    assert {one.action for one in review.choices(row) if one.enabled} == {"discard", "take", "note"}
    assert _act(row, "discard").done


# --- links ----------------------------------------------------------------------------------------


def _doubtful(where: Connection, **more: Any) -> Operation:
    return rows.operation(where, "review", action="c.create", maybe_executed=True, **more)


def _refused_link(row: Operation, ref: str, says: str) -> None:
    before = _everything()
    decided = _act(row, "link", remote_ref=ref)
    assert not decided.done
    assert says in decided.text, decided.text
    assert _everything() == before
    assert Decision.objects.filter(operation=row, done=False, remote_ref=ref).exists()


def test_a_link_needs_an_id(crm: Connection) -> None:
    with pytest.raises(BadPayload, match="remote id"):
        _act(_doubtful(crm), "link", remote_ref=" ")


def test_a_link_is_read_first(crm: Connection, there: FakeRemote) -> None:
    """Nothing that is not there, or lies in another account, is linked."""
    elsewhere = there.seed("other", {"name": "Ann"})
    _refused_link(_doubtful(crm), "999", "no object 999")
    _refused_link(_doubtful(crm, source_id="2"), elsewhere, "no object")


def test_a_link_to_what_is_tied_already(crm: Connection, there: FakeRemote) -> None:
    ref = there.seed("acme", {"name": "Ann"})
    rows.mapping(crm, "c", "other", remote_ref=ref)
    _refused_link(_doubtful(crm), ref, "already tied to c other")


def test_a_link_of_an_entity_that_is_tied_elsewhere(crm: Connection, there: FakeRemote) -> None:
    ref = there.seed("acme", {"name": "Ann"})
    rows.mapping(crm, "c", "1", remote_ref="other")
    _refused_link(_doubtful(crm), ref, "already tied")


def test_a_link_to_an_object_of_another_record_of_ours(crm: Connection, there: FakeRemote) -> None:
    other = _doubtful(crm, source_id="other")
    ref = there.seed("acme", {"name": "Ann"}, reference=other.reference)
    _refused_link(_doubtful(crm), ref, "another record of ours")


def test_a_link_to_another_tenants_object(crm: Connection, there: FakeRemote) -> None:
    """I14: the same account, worked on for two tenants."""
    theirs = _doubtful(_connect(there, "acme", tenant_slug="other"))
    ref = there.seed("acme", {"name": "Ann"}, reference=theirs.reference)
    _refused_link(_doubtful(crm), ref, "another record of ours")


def test_a_link_while_the_remote_is_away(crm: Connection, there: FakeRemote) -> None:
    ref = there.seed("acme", {"name": "Ann"})
    there.stop()
    _refused_link(_doubtful(crm), ref, "could not be read")


def test_a_link_to_what_a_person_made_by_hand(crm: Connection, there: FakeRemote) -> None:
    """It carries no reference of anybody's, and what it shows may differ: the person decides."""
    ref = there.seed("acme", {"name": "Anna"}, version=7)
    row = _doubtful(crm)
    assert _act(row, "link", remote_ref=ref).done
    tied = Mapping.objects.get()
    assert (tied.remote_ref, tied.remote_version) == (ref, "7")
    assert '"Anna"' in tied.values, "what is there, not what was meant"
