"""Identity of an intent, and what is refused at the door (F7, F9, F10; protocol §7)."""

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.contract import BadPayload
from hub.keys import (
    LARGEST_INTEGER,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_TEXT,
    canonical_payload,
    check_text,
    check_version,
    entity_reference,
    fingerprint,
    length_prefixed,
    operation_key,
    parse_payload,
    remote_key,
    stream_key,
)

INTENT: dict[str, Any] = {
    "tenant": "acme",
    "account": "portal.example.com",
    "source_system": "shop",
    "object_type": "contact",
    "source_id": "583",
    "action": "contact.create",
    "version": 7,
    "variant": "",
}
ENTITY: dict[str, str] = {
    name: INTENT[name]
    for name in ("tenant", "account", "object_type", "source_system", "source_id")
}
STREAM: dict[str, str] = {
    name: INTENT[name] for name in ("object_type", "source_system", "source_id")
}

# --- what no later change may alter ---------------------------------------------------------------
# Stored operations carry these values: other ones would make every old intent a new one.

KEY = "6450fdb5bcda90ed72e1d6b678ffda1077a6ff9ce7b9007de836477396a908d2"
REMOTE_KEY = "3tlrwdk32fpxmvdt7437tiai5zlfxs5zwuwvxwvq"
REMOTE_KEY_2 = "gl4ilhntnehmwu5ljqn5y5fde7rz73jx5wgonhay"
REFERENCE = "ye4p7vw3kcgs5fqk6d4phqdnww4cksdw66i7xbo4"
STREAM_KEY = "c630256c6ff323f70260f8819acc44ec"
KEY_UNICODE = "995bf8a1b8cd8bba1fc23f84fce3d46caf95bf7e4e662d7e7f60b3cd14d1935e"


def test_the_keys_of_today_are_the_keys_of_tomorrow() -> None:
    key = operation_key(**INTENT)
    assert key == KEY
    assert remote_key(key, 1) == REMOTE_KEY
    assert remote_key(key, 2) == REMOTE_KEY_2
    assert entity_reference(**ENTITY) == REFERENCE
    assert stream_key(**STREAM) == STREAM_KEY
    assert operation_key(**{**INTENT, "source_id": "ñ 🔑", "variant": "web|150"}) == KEY_UNICODE


def test_the_operation_key_is_made_as_the_protocol_says() -> None:
    parts = ["1", *(str(value) for value in INTENT.values())]
    encoded = b"".join(struct.pack(">I", len(p.encode())) + p.encode() for p in parts)
    assert operation_key(**INTENT) == hashlib.sha256(encoded).hexdigest()
    assert length_prefixed(["", "é"]) == b"\x00\x00\x00\x00\x00\x00\x00\x02\xc3\xa9"


# --- different intents, different keys ------------------------------------------------------------


@pytest.mark.parametrize("name", INTENT)
def test_every_part_counts(name: str) -> None:
    other = 8 if name == "version" else INTENT[name] + "x"
    assert operation_key(**{**INTENT, name: other}) != operation_key(**INTENT)


def test_a_content_that_comes_back_is_another_intent() -> None:
    # F9: A → B → A are three versions
    keys = {operation_key(**{**INTENT, "version": version}) for version in (1, 2, 3)}
    assert len(keys) == 3


@pytest.mark.parametrize("separator", ["|", "\x1f", ",", " ", ":", "1", ""])
def test_separators_inside_values_cannot_make_two_intents_one(separator: str) -> None:
    # F10: ("a|b", "c") and ("a", "b|c")
    one = {**INTENT, "source_system": f"a{separator}b", "object_type": "c"}
    two = {**INTENT, "source_system": "a", "object_type": f"b{separator}c"}
    assert operation_key(**one) != operation_key(**two)
    names = ("source_system", "object_type")
    assert stream_key(**{**STREAM, **{n: one[n] for n in names}}) != stream_key(
        **{**STREAM, **{n: two[n] for n in names}}
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.text(max_size=4), max_size=4), min_size=2, max_size=2))
def test_no_two_lists_share_an_encoding(lists: list[list[str]]) -> None:
    one, two = lists
    assert (length_prefixed(one) == length_prefixed(two)) == (one == two)


def test_a_reference_names_the_entity_and_no_version() -> None:
    for name in ENTITY:
        assert entity_reference(**{**ENTITY, name: "other"}) != entity_reference(**ENTITY)
    lower, upper = (entity_reference(**{**ENTITY, "source_id": s}) for s in ("ab", "AB"))
    assert lower.casefold() != upper.casefold(), "source ids may differ in case only"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=50), st.integers(1, 99))
def test_what_a_remote_sees_is_safe_everywhere(text: str, generation: int) -> None:
    shapes = [
        entity_reference(**{**ENTITY, "source_id": text.encode("utf-8", "replace").decode()}),
        remote_key(operation_key(**INTENT), generation),
    ]
    for shape in shapes:
        assert re.fullmatch(r"[a-z2-7]{1,40}", shape)


def test_a_new_generation_has_its_own_key_and_an_attempt_has_none() -> None:
    key = operation_key(**INTENT)
    assert len({remote_key(key, 1) for _attempt in range(8)}) == 1  # W8
    assert len({remote_key(key, generation) for generation in range(1, 50)}) == 49


def test_no_kind_of_key_can_pass_for_another() -> None:
    key = operation_key(**INTENT)
    made = [key, remote_key(key, 1), entity_reference(**ENTITY), stream_key(**STREAM)]
    for one, two in combinations(made, 2):
        assert not one.startswith(two)
        assert not two.startswith(one)


# --- the canonical payload ------------------------------------------------------------------------


def test_the_vector_of_the_contract() -> None:
    text = (
        '{"source":{"version":"7","item":"contrato-583"},"operation":"pdf.optimize",'
        '"options":{"dpi":150,"quality":0.80},"dest":"fld_44"}'
    )
    canonical = canonical_payload(parse_payload(text))
    assert canonical == (
        '{"dest":"fld_44","operation":"pdf.optimize","options":{"dpi":150,"quality":0.8},'
        '"source":{"item":"contrato-583","version":"7"}}'
    )
    digest = "420a4b5cfa8bbb0cc92ba88698e8eb47f801395e3353a7464fbde83e94e3b1d6"
    assert fingerprint(canonical) == digest


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('{"a":1.0}', '{"a":1}'),
        ('{"a":0.80}', '{"a":0.8}'),
        ('{"a":1e21}', '{"a":1e+21}'),
        ('{"a":-0.0}', '{"a":0}'),
        ('{"a":1e-7}', '{"a":1e-7}'),
        ('{"a":333333333.33333329}', '{"a":333333333.3333333}'),
        ('{"a":"\\u20ac$\\u000f\\nA\'B\\"\\\\\\"/"}', '{"a":"€$\\u000f\\nA\'B\\"\\\\\\"/"}'),
        ('{ "b" : [ true , null ] , "a" : { } }', '{"a":{},"b":[true,null]}'),
        # UTF-16 code units decide: U+1F600 (D83D…) comes before U+FB33.
        ('{"\\ufb33":1,"\\ud83d\\ude00":2}', '{"\U0001f600":2,"\ufb33":1}'),
        # Not normalised: e with an accent is one name, e and an accent are another.
        ('{"\\u00e9":1,"e\\u0301":2}', '{"e\u0301":2,"\u00e9":1}'),
    ],
)
def test_canonical_json_is_that_of_rfc_8785(given: str, wanted: str) -> None:
    assert canonical_payload(parse_payload(given)) == wanted


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
    | st.floats(-LARGEST_INTEGER, LARGEST_INTEGER)
    | st.floats(min_value=1e21, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(
                st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=5
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "ñ", "😀"]), JSON_VALUES))
def test_a_canonical_text_is_its_own_canonical_text(payload: dict[str, Any]) -> None:
    once = canonical_payload(payload)
    again = canonical_payload(parse_payload(once))
    assert again == once
    assert fingerprint(again) == fingerprint(once)
    shuffled = dict(reversed(list(payload.items())))
    assert canonical_payload(shuffled) == once


def test_absent_and_null_are_not_the_same() -> None:
    assert fingerprint(canonical_payload({"a": None})) != fingerprint(canonical_payload({}))


# --- refused at the door (F7) ---------------------------------------------------------------------


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "U+0000": ('{"name":"a\\u0000b"}', "name"),
    "U+0000 in a name": ('{"a\\u0000b":1}', r"U\+0000"),
    "lone surrogate": ('{"name":"\\ud800"}', "surrogate"),
    "lone surrogate in a name": ('{"\\udc00x":1}', "surrogate"),
    "NaN": ('{"a":NaN}', "NaN"),
    "infinity": ('{"a":-Infinity}', "-Infinity"),
    "infinity by size": ('{"a":1e999}', "finite"),
    "5,000 digits": ('{"a":' + "9" * 5_000 + "}", "5000 digits"),
    "5,000 digits after the point": ('{"a":0.' + "9" * 5_000 + "}", "digits"),
    "inexact, with a point": ('{"a":9007199254740992.0}', "a: the number is too large"),
    "inexact, with an exponent": ('{"a":-1e17}', "a: the number is too large"),
    "inexact integer": ('{"a":9007199254740993}', "a: the number is too large"),
    "depth 10,000": (deep(10_000), "nested too deeply"),
    "depth 10,000 of lists": ('{"a":' + "[" * 10_000 + "]" * 10_000 + "}", "nested too deeply"),
    "one level too many": (deep(MAX_DEPTH + 2), "nested too deeply"),
    "duplicate names": ('{"a":{"b":1,"b":2}}', "'b'|b stands twice"),
    "too large": ('{"a":"' + "x" * MAX_BYTES + '"}', "bytes"),
    "no object": ("[1]", "object"),
    "a text": ('"a"', "object"),
    "nothing": ("", "not JSON"),
    "cut": ('{"a":', "not JSON"),
    "Latin-1": (b'{"a":"\xe9"}', "UTF-8"),
    "half UTF-8": (b'{"a":"\xc3"}', "UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_database_would_refuse_is_refused_at_the_door(name: str) -> None:
    given, told = REFUSED[name]
    with pytest.raises(BadPayload, match=told) as raised:
        canonical_payload(parse_payload(given))
    words = str(raised.value)
    words.encode()
    assert "\x00" not in words
    assert len(words) < 300
    assert words.endswith((".", "?"))


def test_what_is_just_within_the_limits_is_taken() -> None:
    assert canonical_payload(parse_payload(deep(MAX_DEPTH))) == deep(MAX_DEPTH)
    assert canonical_payload({"a": LARGEST_INTEGER, "b": -LARGEST_INTEGER})
    fits = '{"a":"' + "x" * (MAX_BYTES - 8) + '"}'
    assert canonical_payload(parse_payload(fits)) == fits
    assert canonical_payload(parse_payload(fits.encode())) == fits


@dataclass
class Thing:
    """No JSON value."""


@pytest.mark.parametrize(
    "value",
    [
        {"a": Thing()},
        {"a": b"raw"},
        {"a": {1, 2}},
        {1: "a"},
        {"a": {None: 1}},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": 2**53},
        {"a": [["\ud800"]]},
        {"a\x00": 1},
        ["a"],
        "a",
        None,
    ],
    ids=repr,
)
def test_a_python_value_is_judged_like_a_text(value: Any) -> None:
    with pytest.raises(BadPayload):
        canonical_payload(value)


def test_a_python_value_that_holds_itself_is_refused() -> None:
    knot: dict[str, Any] = {}
    knot["a"] = knot
    with pytest.raises(BadPayload, match="nested too deeply"):
        canonical_payload(knot)


def test_the_path_to_the_fault_is_named() -> None:
    with pytest.raises(BadPayload, match=re.escape("lines[1].price")):
        canonical_payload({"lines": [{"price": 1}, {"price": float("nan")}]})


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_whatever_comes_is_taken_or_refused_in_words(given: str | bytes) -> None:
    try:
        canonical = canonical_payload(parse_payload(given))
    except BadPayload as refusal:
        str(refusal).encode()
    else:
        assert json.loads(canonical) == json.loads(given)


# --- parts of a key -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must not be empty"),
        ("x" * (MAX_TEXT + 1), "256 characters"),
        ("a\x00", r"U\+0000"),
        ("\udfff", "surrogate"),
        (7, "must be a text"),
        (None, "must be a text"),
    ],
)
def test_a_part_of_a_key_that_cannot_be_stored_is_refused(text: Any, told: str) -> None:
    with pytest.raises(BadPayload, match=told) as raised:
        check_text("source_id", text)
    assert "source_id" in str(raised.value)


def test_a_part_of_a_key_that_can_be_stored_is_left_as_it_is() -> None:
    for text in ("583", "ñ 🔑", " padded ", "x" * MAX_TEXT):
        assert check_text("source_id", text) == text
    assert check_text("variant", "", empty=True) == ""


@pytest.mark.parametrize("version", [-1, LARGEST_INTEGER + 1, 1.0, "7", True, None])
def test_a_version_is_a_whole_number_that_orders(version: Any) -> None:
    with pytest.raises(BadPayload, match="version"):
        check_version(version)


@pytest.mark.parametrize("version", [0, 7, LARGEST_INTEGER])
def test_a_whole_number_is_a_version(version: int) -> None:
    assert check_version(version) == version
