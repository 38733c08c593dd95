"""What is kept of an answer fits the database and does not hold up the event loop (`work.fit`)."""

import time

import pytest

from hub.contract import Candidate, Done, Looked
from hub.redaction import Scrubber
from hub.work import LONGEST_VALUES, fit

pytestmark = pytest.mark.pure
SCRUBBER = Scrubber(["a-secret-of-a-test-123456"])


def _size(value: object) -> int:
    return len(repr(value))


@pytest.mark.parametrize(
    "huge",
    [
        "x" * 8_000_000,
        ["ab"] * 2_000_000,
        {str(n): "ab" for n in range(500_000)},
        [[[["ab"] * 100] * 100] * 100],
    ],
    ids=["a text", "a list", "an object", "nested"],
)
def test_a_huge_value_is_not_kept(huge: object) -> None:
    began = time.process_time()
    seen = fit(Done(remote_ref="1", values={"name": "Ann", "huge": huge, "last": "b"}), SCRUBBER)
    # Searched for secrets as a whole, each of these takes seconds.
    assert time.process_time() - began < 1.0
    assert seen.remote_ref == "1"
    assert seen.values["name"] == "Ann"
    assert "too long" in str(seen.values["huge"])
    assert _size(seen.values) < 2 * LONGEST_VALUES


def test_too_many_fields_are_cut() -> None:
    fields = {f"field {n}": "some text" for n in range(1_000_000)}
    [kept] = fit(Looked((Candidate("1", matches=False, fields=fields),)), SCRUBBER).candidates
    assert 1000 < len(kept.fields) < 50_000
    assert _size(kept.fields) < 4 * LONGEST_VALUES


def test_ordinary_values_are_kept_as_they_are_but_for_secrets() -> None:
    values = {"phone": ["+49", "+34"], "address": {"city": "Köln", "zip": None}, "n": 3, "b": True}
    assert fit(Done(remote_ref="1", values=values), SCRUBBER).values == values
    told = fit(Done(remote_ref="1", values={"x": "is a-secret-of-a-test-123456!"}), SCRUBBER)
    assert told.values == {"x": "is •••!"}
