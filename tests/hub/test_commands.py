"""What an operator types: submit, drain, show. Every exit code, every format, no traceback."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from hub.models import Connection, Operation
from tests.fixtures import ROOT
from tests.hub.operations import connection

Manage = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def crm(transactional_db: None) -> Connection:
    return connection()


def said(name: str, *arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(name, *arguments, stdout=out, **options)
    return out.getvalue()


def line(*values: Any) -> str:
    return json.dumps(values)


def lines(monkeypatch: pytest.MonkeyPatch, text: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `hub_submit --lines` with this input."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code = 0
    try:
        call_command("hub_submit", "--lines", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as end:
        code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


# --- hub_submit ----------------------------------------------------------------------------------


def test_it_prints_the_id_and_the_same_id_for_a_duplicate(crm: Connection) -> None:
    """F1: a script may repeat its command."""
    first = said("hub_submit", "crm", "probe.echo", "7", "3", '{"nonce": "n"}')
    again = said("hub_submit", "crm", "probe.echo", "7", "3", ' {"nonce":"n"} ')
    row = Operation.objects.get()
    assert first == again == f"{row.pk}\n"
    assert (row.source_system, row.source_id, row.version, row.payload) == (
        "hub", "7", 3, '{"nonce":"n"}',
    )  # fmt: skip


def test_the_source_is_part_of_the_intent(crm: Connection) -> None:
    """F10: the same id of two source systems is two entities."""
    for name in ("erp", "shop"):
        said("hub_submit", "crm", "probe.echo", "7", "1", '{"nonce": "n"}', "--source", name)
    found = Operation.objects.values_list("source_system", flat=True)
    assert sorted(found) == ["erp", "shop"]


BAD = [
    ("no connection", ("x", "probe.echo", "1", "1", "{}"), r"no connection 'x' \(there are: crm\)"),
    ("no such action", ("crm", "probe.fly", "1", "1", "{}"), "has no action 'probe.fly'"),
    ("no version", ("crm", "probe.echo", "1", "one", "{}"), "version: must be a whole number"),
    ("a signed version", ("crm", "probe.echo", "1", "+1", "{}"), "version: must be a whole number"),
    ("other digits", ("crm", "probe.echo", "1", "١", "{}"), "version: must be a whole number"),
    ("a huge version", ("crm", "probe.echo", "1", "9" * 19, "{}"), "version: must be between"),
    ("no JSON", ("crm", "probe.echo", "1", "1", "{nonce}"), "not JSON: .* line 1, column 2"),
    ("no object", ("crm", "probe.echo", "1", "1", "[1, 2]"), "must be a JSON object"),
    ("pairs", ("crm", "probe.echo", "1", "1", '[["nonce", "n"]]'), "must be a JSON object"),
    ("null", ("crm", "probe.echo", "1", "1", "null"), "must be a JSON object"),
    ("twice", ("crm", "probe.echo", "1", "1", '{"a": 1, "a": 2}'), "name a stands twice"),
    ("NaN", ("crm", "probe.echo", "1", "1", '{"a": NaN}'), "NaN is not a JSON number"),
    ("infinite", ("crm", "probe.echo", "1", "1", '{"a": -Infinity}'), "not a JSON number"),
    ("too large", ("crm", "probe.echo", "1", "1", '{"a": 1e999}'), "a: not a finite number"),
    ("5,000 digits", ("crm", "probe.echo", "1", "1", '{"a": %s}' % ("1" * 5000)), "5000 digits"),
    ("U+0000", ("crm", "probe.echo", "1", "1", r'{"a": "\u0000"}'), r"a: .* character U\+0000"),
    ("half a pair", ("crm", "probe.echo", "1", "1", r'{"a": "\ud800"}'), "a: .*surrogate pair"),
    ("deep", ("crm", "probe.echo", "1", "1", "[" * 10_000 + "]" * 10_000), "JSON object|deeply"),
    ("deep inside", ("crm", "probe.echo", "1", "1", '{"a":' * 50 + "1" + "}" * 50), "too deeply"),
    ("no id", ("crm", "probe.echo", "", "1", '{"nonce": "n"}'), "source_id: must not be empty"),
    ("no field", ("crm", "probe.echo", "1", "1", "{}"), "nonce"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_cannot_be_right_ends_with_2(
    crm: Connection, arguments: tuple[str, ...], text: str
) -> None:
    """F7: a readable text with field and reason, the same on both databases."""
    with pytest.raises(CommandError, match=text) as caught:
        said("hub_submit", *arguments)
    assert caught.value.returncode == 2
    assert not Operation.objects.exists()


def test_an_argument_that_is_missing_ends_with_2(crm: Connection) -> None:
    with pytest.raises(CommandError, match="are all needed") as caught:
        said("hub_submit", "crm", "probe.echo", "1")
    assert caught.value.returncode == 2


def test_another_payload_ends_with_3(crm: Connection) -> None:
    """F3: the text names the operation and the next step."""
    said("hub_submit", "crm", "probe.echo", "1", "1", '{"nonce": "n"}')
    with pytest.raises(CommandError, match=r"^hub/1: Operation .* new version") as caught:
        said("hub_submit", "crm", "probe.echo", "1", "1", '{"nonce": "m"}')
    assert caught.value.returncode == 3
    assert Operation.objects.count() == 1


def test_what_is_impossible_ends_with_2(crm: Connection) -> None:
    """§13: told which row is in the way."""
    where = connection("portal", "bitrix24")
    fields = '{"first_name": "Ann", "last_name": "Smith"}'
    with pytest.raises(CommandError, match="submit a create first") as caught:
        said("hub_submit", where.name, "contact.update", "1", "1", fields)
    assert caught.value.returncode == 2
    said("hub_submit", where.name, "contact.create", "1", "1", fields)
    number = Operation.objects.get().pk
    with pytest.raises(CommandError, match=f"by operation {number}"):
        said("hub_submit", where.name, "contact.create", "1", "2", fields)


def test_lines_give_an_id_each(crm: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: in order; a duplicate repeats its id; empty lines count for nothing."""
    text = "\n".join(
        [
            line("crm", "probe.echo", "1", 1, {"nonce": "a"}),
            "",
            line("crm", "probe.echo", 2, "1", {"nonce": "b"}),
            line("crm", "probe.echo", "1", 1, {"nonce": "a"}),
        ]
    )
    code, out, err = lines(monkeypatch, text, "--source", "erp")
    ids = [int(one) for one in out.split()]
    assert (code, err) == (0, "")
    assert ids[0] == ids[2] != ids[1]
    assert set(Operation.objects.values_list("pk", "source_id", "source_system")) == {
        (ids[0], "1", "erp"),
        (ids[1], "2", "erp"),
    }


def test_a_bad_line_costs_the_others_nothing(
    crm: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: an empty line in its place, its number and reason on the other stream, the worst code."""
    good = line("crm", "probe.echo", "1", 1, {"nonce": "a"})
    bad = [
        "{",
        "[1,2]",
        "7",
        line("crm", "probe.echo", "x", 1, [1]),
        line("crm", "probe.echo", "x", 1.5, {"nonce": "a"}),
        line("crm", "probe.echo", "x", None, {"nonce": "a"}),
        line("crm", "probe.echo", None, 1, {"nonce": "a\x00"}),
        line("crm\x00", "probe.echo", "x", 1, {"nonce": "a"}),
        line("crm\ud800", "probe.echo", "x", 1, {"nonce": "a"}),
        line("crm", "\ud800", "x", 1, {"nonce": "a"}),
        line("crm", "probe.echo", "x\ud800", 1, {"nonce": "a"}),
        line({"a": 1}, ["b"], "x", 1, {"nonce": "a"}),
    ]
    code, out, err = lines(monkeypatch, "\n".join([good, *bad, good]))
    told = out.split("\n")
    assert code == 2
    assert told[0] == told[-2] == str(Operation.objects.get().pk)
    assert told[1:-2] == [""] * len(bad)
    found = err.splitlines()
    assert [text.split(":")[0] for text in found] == [f"line {n}" for n in range(2, 2 + len(bad))]
    err.encode()


def test_the_worst_line_decides_the_code(crm: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """F3: drift (3) is told above bad input (2)."""
    text = "\n".join(
        [
            line("crm", "probe.echo", "1", 1, {"nonce": "a"}),
            line("crm", "probe.echo", "1", 1, {"nonce": "b"}),
            line("crm", "probe.echo", "1", 1, {}),
        ]
    )
    code, out, err = lines(monkeypatch, text)
    assert code == 3
    assert out.split("\n")[1:] == ["", "", ""]
    assert "line 2: hub/1: Operation" in err
    assert "line 3: hub/1:" in err


def test_what_is_said_names_source_and_id(crm: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: two sources may use one id, so a message names both."""
    for name in ("erp", "shop"):
        with pytest.raises(CommandError, match=rf"^{name}/7: nonce"):
            said("hub_submit", "crm", "probe.echo", "7", "1", "{}", "--source", name)
    _code, _out, err = lines(
        monkeypatch, line("crm", "probe.echo", "7", "x", {}), "--source", "erp"
    )
    assert err.startswith("line 1: erp/7: version: ")
    long = lines(monkeypatch, line("crm", "probe.echo", "7" * 900, 1, {"nonce": "n"}))[2]
    assert len(long) < 400


@pytest.mark.processes
def test_two_processes_submit_the_same_lines(crm: Connection, hub_environment: Any) -> None:
    """F2: both get the same ids, in the same order, and neither sees an error."""
    text = "\n".join(line("crm", "probe.echo", str(n), 1, {"nonce": str(n)}) for n in range(60))
    started = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "hub_submit", "--lines"],
            env=hub_environment, cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for one in started:
        assert one.stdin is not None
        one.stdin.write(text)
        one.stdin.close()
    told = []
    for one in started:
        assert one.stdout is not None
        assert one.stderr is not None
        told.append(one.stdout.read().split())
        errors = one.stderr.read()
        assert one.wait(60) == 0, errors
        assert "Traceback" not in errors
    assert told[0] == told[1]
    assert len(set(told[0])) == Operation.objects.count() == 60


@pytest.mark.processes
def test_the_exit_codes_of_the_process(crm: Connection, manage: Manage) -> None:
    """F3, F7: 0, 2, 3 and 1 as a shell sees them, and never a traceback."""
    seen = {
        0: manage("hub_submit", "crm", "probe.echo", "1", "1", '{"nonce":"a"}'),
        3: manage("hub_submit", "crm", "probe.echo", "1", "1", '{"nonce":"b"}'),
        2: manage("hub_submit", "crm", "probe.echo", "1", "1", '{"nonce":'),
        1: manage("hub_show", "999999"),
    }
    for code, done in seen.items():
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
    ugly = manage("hub_submit", "cr\udcff", "probe.echo", "1", "1", '{"nonce":"a"}')
    assert (ugly.returncode, "Traceback" in ugly.stderr) == (2, False), ugly.stderr


@pytest.mark.processes
def test_lines_that_are_no_utf_8(crm: Connection, hub_environment: Any) -> None:
    """F7: bytes that are no text end in a readable refusal of that line, not in a traceback."""
    good = line("crm", "probe.echo", "1", 1, {"nonce": "a"}).encode()
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "hub_submit", "--lines"],
        input=b'["crm","probe.echo","\xff",1,{"nonce":"a"}]\n' + good + b"\n",
        env={**hub_environment, "PYTHONIOENCODING": "utf-8"}, cwd=ROOT, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2
    assert done.stdout.split() == [str(Operation.objects.get().pk).encode()]


# --- hub_show ------------------------------------------------------------------------------------


def test_show_in_words_and_as_json(crm: Connection) -> None:
    """I20: what is known of an operation, for a person and for a program; the payload is not."""
    number = said("hub_submit", "crm", "probe.echo", "7", "3", '{"nonce": "n"}').strip()
    text = said("hub_show", number)
    assert f"operation {number}: probe.echo probe 7 version 3 on crm (acme)" in text
    assert "pending" in text
    told = json.loads(said("hub_show", number, "--json"))
    assert (told["id"], told["state"], told["source_id"]) == (int(number), "pending", "7")
    assert (told["attempts"], told["evidence"], told["decisions"]) == ([], [], [])
    assert "payload" not in told


def test_show_prints_what_is_there_and_names_what_is_not(crm: Connection) -> None:
    number = said("hub_submit", "crm", "probe.echo", "7", "3", '{"nonce": "n"}').strip()
    out = io.StringIO()
    with pytest.raises(CommandError, match=r"There is no operation 999998, 999999\.") as caught:
        call_command("hub_show", "999998", number, "999999", "--json", stdout=out)
    assert caught.value.returncode == 1
    assert [json.loads(text)["id"] for text in out.getvalue().splitlines()] == [int(number)]


def test_show_of_many_is_one_object_per_line(crm: Connection) -> None:
    ids = [
        said("hub_submit", "crm", "probe.echo", str(n), "1", '{"nonce": "n"}').strip()
        for n in range(3)
    ]
    told = [json.loads(text) for text in said("hub_show", *ids, "--json").splitlines()]
    assert [str(one["id"]) for one in told] == ids


# --- hub_drain -----------------------------------------------------------------------------------


@pytest.mark.processes
def test_drain_works_until_nothing_is_due(crm: Connection, manage: Manage) -> None:
    """It says how many moves it made, and ends with 0, also when there was nothing to do."""
    done = manage("hub_drain", "--budget", "20")
    assert (done.returncode, done.stdout) == (0, "0 moves settled\n"), done.stderr
    # Nothing listens at the connection's address: nothing leaves, and the operation waits.
    Connection.objects.update(networks="127.0.0.0/8")
    number = said("hub_submit", "crm", "probe.echo", "7", "3", '{"nonce": "n"}').strip()
    done = manage("hub_drain", "--budget", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("moves settled\n")
    row = Operation.objects.get(pk=number)
    assert (row.state, row.maybe_executed) == ("retry", False), row.reason_text


@pytest.mark.processes
def test_drain_with_rest_waits_for_what_comes_back(crm: Connection, manage: Manage) -> None:
    """`--rest` ends when everything rests, or when its time is over."""
    Connection.objects.update(networks="127.0.0.0/8")
    said("hub_submit", "crm", "probe.echo", "7", "3", '{"nonce": "n"}')
    done = manage(
        "hub_drain", "--rest", "30", HUB_RETRY_BASE="0.05", HUB_RETRY_CAP="0.1",
        HUB_MAX_ATTEMPTS="3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = Operation.objects.get()
    assert (row.state, row.reason_code, row.attempts) == ("review", "exhausted", 3), done.stderr


@pytest.mark.processes
def test_drain_refuses_times_that_do_not_nest(crm: Connection, manage: Manage) -> None:
    """F23: nothing is started with leases that are too short; the text says which."""
    done = manage("hub_drain", HUB_LEASE_ADDEND="1", HUB_MARGIN="10")
    assert done.returncode == 1
    assert "HUB_LEASE_ADDEND" in done.stderr
    assert "Traceback" not in done.stderr
