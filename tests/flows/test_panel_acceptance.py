"""The acceptance tests of the review panel, each by its number (protocol §16)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection as database

from hub import cases, effects, review
from hub.contract import BadPayload
from hub.contract import Candidate as SeenCandidate
from hub.models import (
    Candidate,
    Connection,
    Decision,
    Evidence,
    Mapping,
    Note,
    Operation,
    ReviewCase,
    Scope,
)
from hub.outbox import Submitted
from hub.redaction import Scrubber
from hub.sql import database_now
from tests.harness.remote import FakeRemote
from tests.harness.world import World


@pytest.fixture
def there(world: World) -> FakeRemote:
    return world.fake_remote()


@pytest.fixture
def crm(world: World, there: FakeRemote) -> Connection:
    return world.connect(there)


def _in_review(
    world: World, there: FakeRemote, crm: Connection, *, happened: bool = False, pk: str = "1"
) -> Submitted:
    """A create of class d whose outcome nobody knows."""
    there.order("drop", "POST", when="after" if happened else "before")
    done = world.submit(crm, "d.create", pk, 1, {"n": 1})
    world.settle()
    assert world.state(done) == "review", world.story(done)
    return done


def _failed(world: World, there: FakeRemote, crm: Connection, pk: str = "1") -> Submitted:
    there.order("answer", "POST", when="before", status=400, body={"error": "INVALID"})
    done = world.submit(crm, "c.create", pk, 1, {"n": 1})
    world.settle()
    assert world.state(done) == "failed", world.story(done)
    return done


def _form(row: Operation, **more: Any) -> dict[str, Any]:
    """What a page drawn now sends back."""
    seen = review.seen(row)
    return {
        "by": "ann",
        "reason": "because",
        "seen_state": seen.state,
        "seen_token": seen.token,
        "seen_decision": seen.decision,
        "seen_digest": seen.digest,
        **more,
    }


def _act(world: World, done: Submitted | int, action: str, **more: Any) -> review.Decided:
    row = world.operation(done)
    return review.act(row.pk, action, **_form(row, **more))


def _at_once(count: int, one: Callable[[int], review.Decided]) -> list[review.Decided]:
    ready = threading.Barrier(count)
    told: list[review.Decided] = []

    def run(number: int) -> None:
        try:
            ready.wait(60)
            told.append(one(number))
        finally:
            database.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(told) == count
    return told


def _candidate(operation: Operation, ref: str, **more: Any) -> Candidate:
    case = ReviewCase.objects.get(subject="operation", subject_id=operation.pk, closed_at=None)
    seen = SeenCandidate(ref, matches=False, **more)
    cases.keep_candidates(case, [seen], Scrubber(), database_now())
    return Candidate.objects.get(case=case, remote_ref=ref)


# --- 1: one form ----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["send_again", "retry", "discard", "link"])
def test_acceptance_01_the_same_form_ten_times_is_one_action(
    world: World, there: FakeRemote, crm: Connection, action: str
) -> None:
    """Ten equal answers, one attempt."""
    happened = action == "link"
    done = (
        _failed(world, there, crm)
        if action == "retry"
        else _in_review(world, there, crm, happened=happened)
    )
    row = world.operation(done)
    before = len(there.writes("acme"))
    ref = next(iter(there.things("acme")), "")
    form = _form(row, form_token="drawn-once", remote_ref=ref if happened else "")
    told = _at_once(10, lambda _n: review.act(row.pk, action, **form))
    assert len(set(told)) == 1, told
    assert told[0].done
    assert [one.repeated for one in told].count(False) == 1
    assert Decision.objects.filter(operation=row).count() == 1
    if action == "send_again":
        world.acknowledged(told[0].operation_id, "sent again")
    world.settle()
    assert len(there.writes("acme")) - before == (1 if action in ("send_again", "retry") else 0)


def test_acceptance_01_a_form_is_one_persons_for_one_decision(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    done = _in_review(world, there, crm)
    row = world.operation(done)
    form = _form(row, form_token="drawn-once")
    first = review.act(row.pk, "discard", **form)
    assert first.done
    assert review.act(row.pk, "discard", **form).repeated
    other = review.act(row.pk, "discard", **{**form, "by": "bob"})
    another = review.act(row.pk, "send_again", **form)
    assert not other.repeated
    assert not other.done
    assert not another.repeated
    assert not another.done
    assert Operation.objects.count() == 1


def test_acceptance_01_a_refused_form_is_answered_the_same_again(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    done = _in_review(world, there, crm)
    row = world.operation(done)
    form = _form(row, form_token="drawn-once", seen_token=row.lease_token - 1)
    told = _at_once(5, lambda _n: review.act(row.pk, "discard", **form))
    assert len(set(told)) == 1
    assert not told[0].done
    assert Decision.objects.count() == 1


# --- 2, 3: what was seen --------------------------------------------------------------------------


def test_acceptance_02_two_people_choose_differently(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """Exactly one is carried out; the other sees who and what; both are recorded."""
    done = _in_review(world, there, crm)
    row = world.operation(done)
    form = _form(row)
    chosen = [("ann", "discard"), ("bob", "send_again")]
    told = _at_once(2, lambda n: review.act(row.pk, chosen[n][1], **{**form, "by": chosen[n][0]}))
    assert sorted(one.done for one in told) == [False, True]
    first = Decision.objects.get(done=True)
    refused = Decision.objects.get(done=False)
    assert {first.by_name, refused.by_name} == {"ann", "bob"}
    assert f"{first.by_name} decided {first.action}" in refused.result
    for one in told:
        if one.done:
            world.acknowledged(one.operation_id, "decided")
    world.settle()


def test_acceptance_02_what_another_said_of_an_object_counts(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """Neither state nor token has moved, and yet it is another question."""
    done = _in_review(world, there, crm)
    row = world.operation(done)
    _candidate(row, "77")
    form = _form(row)
    assert _act(world, done, "not_same", remote_ref="77", by="bob").done
    told = review.act(row.pk, "discard", **form)
    assert not told.done
    assert "bob decided not_same" in told.text


def test_acceptance_03_an_old_page_after_new_facts(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    done = _in_review(world, there, crm)
    row = world.operation(done)
    _candidate(row, "76")
    form = _form(row)
    _candidate(row, "77")
    told = review.act(row.pk, "discard", **form)
    assert not told.done
    assert "object 77" in told.text
    assert "object 76" not in told.text, "only what is new is told"
    assert world.state(done) == "review"
    record = Decision.objects.get()
    assert (record.done, record.seen_digest) == (False, form["seen_digest"].split()[0])
    assert _act(world, done, "discard").done


def test_acceptance_03_harmless_news_do_not_count(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    done = _in_review(world, there, crm)
    row = world.operation(done)
    _candidate(row, "76")
    form = _form(row)
    assert _act(world, done, "note", by="bob", reason="I have asked them").done
    cases.note(row.pk, "sweep", "Nothing of weight.", actor="sweep")
    _candidate(row, "76")  # read again, and the same
    assert review.act(row.pk, "discard", **form).done


def test_acceptance_03_what_an_advice_uses_is_a_fact(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    done = _in_review(world, there, crm)
    row = world.operation(done)
    form = _form(row)
    cases.note(row.pk, "late_result", "A result came after the lease was lost.", actor="w")
    told = review.act(row.pk, "discard", **form)
    assert not told.done
    assert "A result came after" in told.text


# --- 4, 5: a worker at the same time --------------------------------------------------------------


@pytest.mark.parametrize("when", ["claim.committed", "mark.committed", "settle.committed"])
def test_acceptance_04_a_retry_while_a_worker_claims(
    world: World, there: FakeRemote, crm: Connection, when: str
) -> None:
    """The retry is clicked again while what it started is under way: never two sends."""
    done = _failed(world, there, crm)
    before = len(there.writes("acme"))
    row = world.operation(done)
    form = _form(row, form_token="drawn-once")
    assert review.act(row.pk, "retry", **form).done
    told: list[review.Decided] = []

    def click(name: str) -> None:
        if name == when:
            told.append(review.act(row.pk, "retry", **form))
            told.append(review.act(row.pk, "retry", **{**form, "form_token": "another-tab"}))

    world.drain(steps=click)
    world.settle()
    assert told, "no click met the worker"
    assert told[0].repeated
    assert not told[1].done
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.writes("acme")) - before == 1


def test_acceptance_04_many_clicks_beside_a_worker(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    done = _failed(world, there, crm)
    before = len(there.writes("acme"))
    row = world.operation(done)
    form = _form(row)
    told = _at_once(6, lambda n: review.act(row.pk, "retry", **{**form, "form_token": f"tab-{n}"}))
    assert [one.done for one in told].count(True) == 1
    world.settle()
    assert len(there.writes("acme")) - before == 1


def test_acceptance_05_no_discard_with_a_live_lease(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """Refused, with the time from which it can be decided."""
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    told: list[review.Decided] = []

    def click(name: str) -> None:
        if name == "mark.committed" and not told:
            assert world.state(done) == "sent"
            until = world.operation(done).lease_until
            told.append(_act(world, done, "discard"))
            assert until is not None
            assert f"{until:%Y-%m-%d %H:%M:%S}" in told[0].text

    world.drain(steps=click)
    world.settle()
    assert told
    assert not told[0].done
    assert world.state(done) == "confirmed"


def test_acceptance_05_a_discard_while_a_send_is_under_way(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """Its worker is fenced off; the answer that comes later is evidence, moves nothing, and what it
    says is a new case.
    """
    done = world.submit(crm, "d.create", "1", 1, {"n": 1})
    told: list[review.Decided] = []

    def meanwhile(name: str) -> None:
        if name == "settle.before" and not told:
            row = world.lapsed(done)
            if row.state == "uncertain":
                assert _act(world, done, "take_over").done
            assert world.state(done) == "review", world.story(done)
            told.append(_act(world, done, "discard"))

    world.drain(steps=meanwhile)
    world.settle()
    assert told, "no send was under way"
    assert told[0].done, told
    row = world.operation(done)
    assert (row.state, row.maybe_executed) == ("discarded", True), world.story(done)
    assert Evidence.objects.filter(operation=row, kind="late_result").exists()
    case = ReviewCase.objects.get(subject_id=row.pk, closed_at=None)
    assert case.reason_code == "late_effect"
    [made] = there.things("acme")
    assert made in case.summary


# --- 6: the object there --------------------------------------------------------------------------


@pytest.mark.parametrize("moved", ["tied", "deleted"])
def test_acceptance_06_an_object_that_was_there_a_moment_ago(
    world: World, there: FakeRemote, crm: Connection, moved: str
) -> None:
    done = _in_review(world, there, crm, happened=True)
    [ref] = there.things("acme")
    row = world.operation(done)
    _candidate(row, ref)
    form = _form(row, remote_ref=ref)
    if moved == "tied":
        Mapping.objects.create(
            tenant=crm.tenant, connection=crm, object_type=row.object_type, source_system="hub",
            source_id="other", remote_ref=ref, updated_at=database_now(),
        )  # fmt: skip
    else:
        there.person("acme", ref, None)
    told = review.act(row.pk, "link", **form)
    assert not told.done
    assert ref in told.text
    assert world.state(done) == "review"
    Mapping.objects.filter(source_id="other").delete()


# --- 8: nothing is repeated while a look cannot count ---------------------------------------------


def test_acceptance_08_no_retry_while_a_look_cannot_count(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """In doubt and with a look, the look comes first, in page and service."""
    there.order("drop", "POST", when="after")
    done = world.submit(crm, "c.create", "1", 1, {"n": 1})
    world.drain_until(lambda: there.log)

    def enabled() -> set[str]:
        return {one.action for one in review.choices(world.operation(done)) if one.enabled}

    if world.state(done) == "uncertain":
        assert "retry" not in enabled()
        assert _act(world, done, "take_over").done
        assert "look_again" in enabled()
        assert "retry" not in enabled()
        told = _act(world, done, "retry")
        assert not told.done
        assert "Look again" in told.text
        assert _act(world, done, "look_again").done
    world.settle()
    assert world.state(done) == "confirmed", world.story(done)
    assert len(there.writes("acme")) == 1


# --- 9, 10: key and payload -----------------------------------------------------------------------


def test_acceptance_09_the_key_ran_out_between_page_and_click(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    there.order("drop", "POST", when="after")
    done = world.submit(crm, "a.create", "1", 1, {"n": 1})
    told: list[review.Decided] = []

    def over(name: str) -> None:
        if name == "settle.committed" and not told and world.operation(done).maybe_executed:
            told.append(_act(world, done, "take_over"))

    world.drain(steps=over)
    assert told
    assert told[0].done, told
    row = world.operation(done)
    assert row.state == "review"
    assert "retry" in {one.action for one in review.choices(row) if one.enabled}
    form = _form(row)
    world.pass_time(10 * 86_400.0)
    refused = review.act(row.pk, "retry", **form)
    assert not refused.done
    assert "ook" in refused.text, "what to do first"
    assert "retry" not in {one.action for one in review.choices(row) if one.enabled}
    assert len(there.writes("acme")) == 1


def test_acceptance_10_the_payload_is_not_the_recorded_one(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    """Its key must never go with other data."""
    done = _failed(world, there, crm)
    before = len(there.writes("acme"))
    payload = world.operation(done).payload
    Operation.objects.filter(pk=done.operation_id).update(payload='{"n":2}')
    row = world.operation(done)
    assert "retry" not in {one.action for one in review.choices(row) if one.enabled}
    told = _act(world, done, "retry")
    assert not told.done
    assert "Send them as new" in told.text
    with pytest.raises(BadPayload, match="Send them as new"):
        review.plan(row.pk, "retry")
    Operation.objects.filter(pk=done.operation_id).update(payload=payload)
    world.settle()
    assert len(there.writes("acme")) == before


# --- 13: rights -----------------------------------------------------------------------------------


def test_acceptance_13_a_reader_decides_nothing(
    world: World, there: FakeRemote, crm: Connection
) -> None:
    done = _in_review(world, there, crm)
    user = User.objects.create_user("reader")
    user.user_permissions.add(Permission.objects.get(codename="view_operation"))
    Scope.objects.create(user=user, tenant=crm.tenant)
    for action in review.ACTIONS:
        with pytest.raises(review.Lacking):
            _act(world, done, action, by="", user=user, remote_ref="1")
    assert Decision.objects.filter(by=user, done=False).count() == len(review.ACTIONS)
    stranger = User.objects.create_user("stranger", is_staff=True)
    with pytest.raises(BadPayload, match="no operation"):
        _act(world, done, "discard", by="", user=stranger)
    assert world.state(done) == "review"
    assert not Note.objects.exists()
    assert not Decision.objects.filter(done=True).exists()


# --- 15: what would happen ------------------------------------------------------------------------


def _picture() -> dict[tuple[str, int | None, str], Any]:
    """All values a plan speaks of."""
    found: dict[tuple[str, int | None, str], Any] = {}
    yes = {True: "yes", False: "no"}
    for row in Operation.objects.all():
        found["operation", row.pk, "state"] = row.state
        found["operation", row.pk, "doubt"] = yes[row.maybe_executed]
        found["operation", row.pk, "token"] = row.lease_token
    for case in ReviewCase.objects.all():
        found["case", case.pk, "open"] = yes[case.closed_at is None]
        found["case", case.pk, "assigned"] = case.assigned_to_id or ""
    for one in Candidate.objects.all():
        found["candidate", one.pk, "hidden"] = yes[one.refused_at is not None]
    for tie in Mapping.objects.all():
        found["mapping", tie.pk, "object"] = "" if tie.deleted_at else tie.remote_ref
    return found


def _differences(before: dict[Any, Any], after: dict[Any, Any]) -> set[tuple[Any, ...]]:
    new = {key[:2] for key in after} - {key[:2] for key in before}
    told: set[tuple[Any, ...]] = set()
    for key, value in after.items():
        row, pk, name = key
        if key[:2] in new:
            if name in ("state", "open", "object"):
                told.add((row, None, name, "", value))
        elif before[key] != value:
            told.add((row, pk, name, before[key], value))
    return told


def _planned(found: effects.Effects) -> set[tuple[Any, ...]]:
    return {
        (one.row, one.id, one.field, one.before, one.after)
        for one in found.changes
        if one.row != "note" and one.field != "waits"
    }


@pytest.mark.parametrize("start", ["doubt", "happened", "failed", "candidate", "looks", "behind"])
def test_acceptance_15_what_would_happen_is_what_happens(
    world: World, there: FakeRemote, crm: Connection, start: str
) -> None:
    """Every decision that may be taken: the plan told before, the rows changed and the calls made
    are the same.
    """
    user = User.objects.create_user("ann", is_superuser=True)
    tried = 0
    tested = ("send_again", "discard") if start == "behind" else review.ACTIONS
    for number, action in enumerate(tested):
        for behind in review.BEHIND if action == "discard" else (review.GO_ON,):
            pk = f"{number}-{behind}"
            ref = ""
            if start == "failed":
                done = _failed(world, there, crm, pk)
            elif start == "looks":
                there.order("drop", "POST", when="after")
                done = world.submit(crm, "c.create", pk, 1, {"n": 1})

                def over(name: str, done: Submitted = done) -> None:
                    if name == "settle.committed" and world.state(done) == "uncertain":
                        assert _act(world, done, "take_over").done

                world.drain(steps=over)
            else:
                happened = start in ("happened", "candidate")
                done = _in_review(world, there, crm, happened=happened, pk=pk)
                if happened:
                    ref = list(there.things("acme"))[-1]
                if start == "candidate":
                    _candidate(world.operation(done), ref)
                if start == "behind":
                    world.submit(crm, "d.update", pk, 2, {"n": 2})
                    world.submit(crm, "d.update", pk, 3, {"n": 3})
            row = world.operation(done)
            given: dict[str, Any] = {
                "user": user, "by": "", "reason": "because", "remote_ref": ref, "behind": behind,
            }  # fmt: skip
            try:
                told = review.plan(row.pk, action, **given)
            except BadPayload:
                continue
            tried += 1
            before, asked, notes = _picture(), len(there.log), Note.objects.count()
            decided = review.act(row.pk, action, **_form(row, **given))
            assert decided.done, (action, decided.text)
            case = (action, behind, told)
            assert _differences(before, _picture()) == _planned(told), case
            assert Note.objects.count() - notes == [c.row for c in told.changes].count("note"), case
            reads = [one for one in told.calls if one.does == "read"]
            assert len(there.log) - asked == len(reads), case
            kept = effects.read(Decision.objects.filter(done=True).latest("id").effects)
            assert kept.changes == told.changes, case
            assert (kept.calls, kept.released) == (told.calls, told.released), case
            assert kept.operation_id == decided.operation_id, case
            if action == "send_again":
                world.acknowledged(decided.operation_id, "sent again")
            if start == "behind" and behind == review.WAIT:
                assert not told.released
                world.pass_time(review.WAITING.total_seconds())
            asked, writes = len(there.log), len(there.writes("acme"))
            world.settle()
            wanted = [one for one in told.calls if one.does == "write"]
            if start != "behind":
                assert len(there.writes("acme")) - writes == len(wanted), case
                if not told.calls or reads:
                    assert len(there.log) == asked, case
            for pk_of in told.released:
                assert world.operation(pk_of).state not in ("pending", "retry"), case
    assert tried > 3, "the plan of hardly anything was tried"


def test_a_person_sends_only_so_much_by_hand(
    world: World, there: FakeRemote, crm: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten at once for two that are left: two go."""
    monkeypatch.setattr(review, "BY_HAND", 2)
    user = User.objects.create_user("ann", is_superuser=True)
    every = [world.operation(_failed(world, there, crm, str(n))) for n in range(6)]
    forms = [_form(one, by="", user=user) for one in every]
    told = _at_once(6, lambda n: review.act(every[n].pk, "retry", **forms[n]))
    assert [one.done for one in told].count(True) == 2
    assert all("by hand" in one.text for one in told if not one.done)
    assert Decision.objects.count() == 6
    world.settle()


def test_facts_are_a_pure_function_of_the_rows() -> None:
    case = ReviewCase(pk=1, reason_code="r", summary="s", advice="link")
    one = Candidate(remote_ref="7", fields="{}", differences="[]")
    news = Evidence(pk=3, kind="late_result", text="t")
    base = review.digest_of(review.facts(case, [one], [news]))
    assert base == review.digest_of(review.facts(case, [one], [news]))
    harmless = Evidence(pk=4, kind="sweep", text="u")
    assert base == review.digest_of(review.facts(case, [one], [harmless, news]))
    assert base != review.digest_of(review.facts(case, [], [news]))
    assert base != review.digest_of(review.facts(case, [one], []))
