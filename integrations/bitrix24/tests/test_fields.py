"""Our names and theirs: what is refused, what counts as equal, and which rows are touched."""

from typing import Any

import pytest

from integrations.bitrix24 import fields as contact
from integrations.bitrix24.tests.samples import EMAIL_ROW, FIELDS, PHONE_ROW, item

OLD_PHONE = [{"value": "+34 600 000 001", "type": "WORK", "id": "991"}]
PERSONS_ROW = {"id": 7, "typeId": "PHONE", "valueType": "HOME", "value": "+34 900"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "empty"),
        ({"first_name": "A", "firstname": "A"}, "firstname"),
        ({"first_name": 7}, "first_name"),
        ({"first_name": ["A"]}, "first_name"),
        ({"first_name": "x" * 256}, "first_name"),
        ({"first_name": "A", "comments": "x" * 60_001}, "comments"),
        ({"first_name": "A", "birthdate": "1.5.1990"}, "birthdate"),
        ({"first_name": "A", "birthdate": "1990-02-30"}, "birthdate"),
        ({"first_name": "A", "company_id": "Acme"}, "company_id"),
        ({"first_name": "A", "company_id": True}, "company_id"),
        ({"first_name": "A", "phone": 34600}, "phone"),
        ({"first_name": "A", "phone": {"value": "1"}}, "phone"),
        ({"first_name": "A", "phone": [{"value": ""}]}, "phone[0]"),
        ({"first_name": "A", "phone": ["1", {"number": "2"}]}, "phone[1]"),
        ({"first_name": "A", "phone": [{"value": "1", "type": "a b"}]}, "phone[0]"),
        ({"first_name": "A", "phone": "1" * 251}, "phone"),
        ({"first_name": "A", "phone": ["1"] * 51}, "phone"),
        ({"first_name": "A", "email": "ana"}, "email"),
        ({"first_name": "A", "email": ["a@b", "a b@c"]}, "email[1]"),
        ({"phone": "1"}, "first_name, last_name"),
        ({"first_name": " "}, "first_name, last_name"),
        ({"first_name": None, "last_name": ""}, "first_name, last_name"),
    ],
)
def test_what_cannot_be_right_is_named(fields: dict[str, Any], named: str) -> None:
    found = list(contact.problems(fields, creating=True))
    assert any(named in sentence for sentence in found), found


@pytest.mark.parametrize(
    "fields",
    [
        dict(FIELDS),
        {"last_name": "Vidal"},
        {"first_name": "A", "phone": None, "email": [], "birthdate": None, "company_id": "12"},
        {"first_name": "A", "phone": [{"value": "1", "type": "mobile"}, "2"]},
    ],
)
def test_what_is_right_passes(fields: dict[str, Any]) -> None:
    assert list(contact.problems(fields, creating=True)) == []


def test_an_update_needs_no_name() -> None:
    assert list(contact.problems({"comments": None}, creating=False)) == []


def test_a_new_contact_leaves_empty_values_out() -> None:
    fields = {**FIELDS, "comments": "", "post": None, "second_name": "  ", "company_id": "12"}
    assert contact.to_create(fields) == {
        "name": "Ana",
        "lastName": "Vidal",
        "birthdate": "1990-05-01",
        "companyId": 12,
        "fm": [
            {"typeId": "PHONE", "valueType": "WORK", "value": "+34 600 000 001"},
            {"typeId": "EMAIL", "valueType": "WORK", "value": "ana@shop.example"},
        ],
    }


def test_a_row_given_twice_is_one_row() -> None:
    fields = {"phone": ["1", {"value": " 1 ", "type": "work"}, {"value": "1", "type": "HOME"}]}
    assert [row["valueType"] for row in contact.to_create(fields)["fm"]] == ["WORK", "HOME"]


@pytest.mark.parametrize(
    ("fields", "theirs"),
    [
        ({"first_name": " Ana "}, {"name": "Ana"}),
        ({"comments": ""}, {"comments": None}),
        ({"comments": None}, {}),
        ({"comments": "a\r\nb"}, {"comments": "a\nb"}),
        ({"birthdate": "1990-05-01"}, {"birthdate": "1990-05-01T00:00:00+03:00"}),
        ({"company_id": None}, {"companyId": 0}),
        ({"company_id": "12"}, {"companyId": 12}),
        ({"phone": "+34 600 000 001"}, {"fm": [PHONE_ROW, EMAIL_ROW, PERSONS_ROW]}),
        ({"phone": []}, {"fm": [PERSONS_ROW]}),
        ({"phone": None}, {"fm": []}),
        ({"phone": "+34 600 000 001"}, {"fm": {"991": PHONE_ROW}}),
    ],
)
def test_equal_after_their_normalisation(fields: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert contact.compare(fields, theirs, {}) == ()
    assert contact.to_update(fields, theirs, {}) == {}


@pytest.mark.parametrize(
    ("fields", "theirs", "name"),
    [
        ({"first_name": "Ana"}, {"name": "Anna"}, "first_name"),
        ({"first_name": "Ana"}, {"name": "ana"}, "first_name"),
        ({"birthdate": "1990-05-01"}, {"birthdate": "1990-05-02T00:00:00+03:00"}, "birthdate"),
        ({"comments": None}, {"comments": "still here"}, "comments"),
        ({"phone": "1"}, {"fm": []}, "phone"),
        ({"phone": "1"}, {"fm": [{**PHONE_ROW, "value": "1", "valueType": "HOME"}]}, "phone"),
        ({"email": "+34 600 000 001"}, {"fm": [PHONE_ROW]}, "email"),
    ],
)
def test_a_difference_is_named(fields: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    assert [difference.field for difference in contact.compare(fields, theirs, {})] == [name]
    assert contact.to_update(fields, theirs, {})


def test_a_row_of_ours_that_is_no_longer_wanted_is_a_difference() -> None:
    theirs = {"fm": [PHONE_ROW, PERSONS_ROW]}
    assert contact.compare({"phone": None}, theirs, {"phone": OLD_PHONE})
    assert not contact.compare({"phone": None}, theirs, {})


def test_our_row_is_changed_by_its_id_and_a_persons_row_stays() -> None:
    theirs = item(fm=[PERSONS_ROW, PHONE_ROW])
    changes = contact.to_update({"phone": "+34 600 000 002"}, theirs, {"phone": OLD_PHONE})
    assert changes == {
        "fm": {"991": {"typeId": "PHONE", "valueType": "WORK", "value": "+34 600 000 002"}}
    }


def test_a_new_row_is_added_beside_rows_that_are_not_ours() -> None:
    changes = contact.to_update({"phone": ["1", "2"], "email": "a@b"}, {"fm": [PERSONS_ROW]}, {})
    assert [(key, row["value"]) for key, row in changes["fm"].items()] == [
        ("n0", "1"),
        ("n1", "2"),
        ("n2", "a@b"),
    ]


def test_our_row_is_removed_by_an_empty_value() -> None:
    theirs = {"fm": [PERSONS_ROW, PHONE_ROW]}
    changes = contact.to_update({"phone": []}, theirs, {"phone": OLD_PHONE})
    assert changes == {"fm": {"991": {"typeId": "PHONE", "value": ""}}}


def test_a_field_that_is_not_in_the_payload_is_left_alone() -> None:
    theirs = item(name="Anna")
    assert contact.to_update({"last_name": "Vidal"}, theirs, {"phone": OLD_PHONE}) == {}


def test_our_row_edited_by_a_person_is_still_ours_by_its_id() -> None:
    theirs = {"fm": [{**PHONE_ROW, "value": "+34 111"}]}
    changes = contact.to_update({"phone": "+34 600 000 001"}, theirs, {"phone": OLD_PHONE})
    assert list(changes["fm"]) == ["991"]


def test_without_ids_our_rows_are_told_by_their_content() -> None:
    noted = {"phone": [{"value": "+34 600 000 001", "type": "WORK"}]}
    changes = contact.to_update({"phone": "2"}, {"fm": [PHONE_ROW, PERSONS_ROW]}, noted)
    assert list(changes["fm"]) == ["991"]


def test_a_row_that_is_there_already_is_not_added_again() -> None:
    # The answer to an earlier update was lost: what we noted is old, the row is new.
    theirs = {"fm": [PERSONS_ROW, {**PHONE_ROW, "id": 1000, "value": "2"}]}
    assert contact.to_update({"phone": "2"}, theirs, {"phone": OLD_PHONE}) == {}
    assert contact.seen_values({"phone": "2"}, theirs)["phone"] == [
        {"value": "2", "type": "WORK", "id": "1000"}
    ]


def test_what_is_noted_holds_our_fields_and_rows_only() -> None:
    theirs = item(fm=[PERSONS_ROW, PHONE_ROW], comments="a person wrote this")
    assert contact.seen_values({"first_name": "x", "phone": "+34 600 000 001"}, theirs) == {
        "first_name": "Ana",
        "phone": OLD_PHONE,
    }


def test_what_is_shown_holds_everything_we_know_of() -> None:
    shown = contact.from_item(item(fm=[PERSONS_ROW]))
    assert shown["phone"] == [{"value": "+34 900", "type": "HOME"}]
    assert shown["birthdate"] == "1990-05-01"
    assert set(shown) == set(contact.BY_NAME)
