"""The settings say what they miss, make what a local run needs, and show no secret on the way."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

ROOT = Path(__file__).resolve().parent.parent
POSTGRES = "postgresql://hub:pass%2Fword@127.0.0.1:9/hub"
PRODUCTION = {
    "HUB_SECRET_KEY": "a-key-of-a-test-0123456789-abcdefghijklmnopqrstuvwxyz-0123456789",
    "HUB_CREDENTIAL_KEYS": Fernet.generate_key().decode(),
    "HUB_ALLOWED_HOSTS": "hub.example, www.hub.example",
    "DATABASE_URL": POSTGRES,
}
SHOW = """
import json
from hub import settings
print(json.dumps({n: v for n, v in vars(settings).items() if n.isupper()}, default=str))
"""


def load(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Import the settings in a process of its own, in an environment of nothing but these."""
    return subprocess.run(
        [sys.executable, "-c", SHOW],
        env={"PATH": os.defpath, "HUB_HOME": str(home), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def loaded(home: Path, **variables: str) -> dict:
    done = load(home, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(home: Path, **variables: str) -> str:
    done = load(home, **variables)
    assert done.returncode != 0
    assert "ImproperlyConfigured" in done.stderr
    return done.stderr


def test_local_run_needs_nothing_and_keeps_its_keys_to_itself(tmp_path):
    home = tmp_path / "home"
    first, second = loaded(home), loaded(home)
    assert first["HUB_LOCAL"] is True
    assert first["SECRET_KEY"] == second["SECRET_KEY"]
    assert first["HUB_CREDENTIAL_KEYS"] == second["HUB_CREDENTIAL_KEYS"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for name in ("secret_key", "credential_keys"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    assert Path(first["DATABASES"]["default"]["NAME"]).parent == home
    assert set(first["ALLOWED_HOSTS"]) == {"127.0.0.1", "localhost", "[::1]"}


def test_processes_that_start_together_agree_on_the_keys(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda _: loaded(tmp_path), range(4)))
    assert len({values["SECRET_KEY"] for values in seen}) == 1
    assert len({values["HUB_CREDENTIAL_KEYS"][0] for values in seen}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"secret_key", "credential_keys", "static"}


def test_command_beside_a_local_run_on_postgresql_finds_its_keys(tmp_path):
    running = loaded(tmp_path, HUB_LOCAL="1", DATABASE_URL=POSTGRES)
    beside = loaded(tmp_path, DATABASE_URL=POSTGRES)
    assert beside["HUB_LOCAL"] is True
    assert beside["SECRET_KEY"] == running["SECRET_KEY"]


def test_production_is_strict(tmp_path):
    values = loaded(tmp_path / "home", **PRODUCTION)
    assert values["HUB_LOCAL"] is False
    assert values["DEBUG"] is False
    assert values["SECURE_SSL_REDIRECT"] is True
    assert values["SESSION_COOKIE_SECURE"] is True
    assert values["ALLOWED_HOSTS"] == ["hub.example", "www.hub.example", "127.0.0.1"]
    assert values["DATABASES"]["default"]["PASSWORD"] == "pass/word"
    assert not (tmp_path / "home").exists(), "nothing lives on a production host"


@pytest.mark.parametrize("missing", ["HUB_SECRET_KEY", "HUB_CREDENTIAL_KEYS"])
def test_production_without_a_key_is_refused(tmp_path, missing):
    variables = {name: value for name, value in PRODUCTION.items() if name != missing}
    said = refused(tmp_path, **variables)
    assert f"{missing} is not set" in said
    assert list(tmp_path.iterdir()) == []


def test_debug_is_for_a_local_run_only(tmp_path):
    assert loaded(tmp_path, HUB_DEBUG="1")["DEBUG"] is True
    assert loaded(tmp_path, HUB_DEBUG="1", **PRODUCTION)["DEBUG"] is False


def test_no_hosts_in_production_is_refused(tmp_path):
    said = refused(tmp_path, **PRODUCTION | {"HUB_ALLOWED_HOSTS": ""})
    assert "HUB_ALLOWED_HOSTS is not set" in said


def test_key_that_is_none_is_refused_without_showing_it(tmp_path):
    good, bad = Fernet.generate_key().decode(), "looks-secret-but-is-short"
    said = refused(tmp_path, **PRODUCTION | {"HUB_CREDENTIAL_KEYS": f"{good},{bad}"})
    assert "Key 2 of HUB_CREDENTIAL_KEYS" in said
    assert good not in said
    assert bad not in said


def test_credential_keys_keep_their_order(tmp_path):
    new, old = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    values = loaded(tmp_path, **PRODUCTION | {"HUB_CREDENTIAL_KEYS": f" {new} , {old},"})
    assert values["HUB_CREDENTIAL_KEYS"] == [new, old]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("HUB_MARGIN", "ten"),
        ("HUB_MARGIN", "nan"),
        ("HUB_MARGIN", "inf"),
        ("HUB_MARGIN", "-1"),
        ("HUB_SENDERS", "0"),
        ("HUB_SENDERS", "2.5"),
        ("HUB_PORT", "eighty"),
        ("HUB_WORKERS", "0"),
        ("HUB_LOOK_SCHEDULE", "5,,20"),
        ("HUB_LOOK_SCHEDULE", "5,-20"),
        ("HUB_LOOK_SCHEDULE", "soon"),
        ("HUB_LOCAL", "perhaps"),
    ],
)
def test_bad_value_is_refused_by_name(tmp_path, name, text):
    assert f"{name} is" in refused(tmp_path, **{name: text})


def test_other_databases_are_refused(tmp_path):
    said = refused(tmp_path, HUB_LOCAL="1", DATABASE_URL="mysql://hub:hidden-word@127.0.0.1/hub")
    assert "DATABASE_URL must begin with" in said
    assert "hidden-word" not in said


def test_each_database_has_its_own_pace(tmp_path):
    sqlite = loaded(tmp_path)
    postgresql = loaded(tmp_path, HUB_LOCAL="1", DATABASE_URL=POSTGRES)
    assert sqlite["HUB_WORKERS"] == sqlite["Q_CLUSTER"]["workers"] == 1
    assert sqlite["HUB_POLL_INTERVAL"] < postgresql["HUB_POLL_INTERVAL"]
    assert postgresql["DATABASES"]["default"]["CONN_HEALTH_CHECKS"] is True
    for values in (sqlite, postgresql):
        # Recounted from dequeue: a task that waits behind another must not be handed out twice.
        cluster = values["Q_CLUSTER"]
        ahead = cluster["queue_limit"] / cluster["workers"] + 1
        assert cluster["retry"] > cluster["timeout"] + 3 + ahead * cluster["timeout"]


def test_pages_carry_the_policy(client, db):
    policy = client.get("/admin/login/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
