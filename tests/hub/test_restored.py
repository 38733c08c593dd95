"""After a restore nothing unfinished is sent blindly: the installation enters a new epoch."""

import io
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from hub.delivery import Drain
from hub.desk import NotOurTime
from hub.management import restore
from hub.models import Heartbeat, Installation, Operation
from tests.hub.operations import connection, heartbeat, pending

pytestmark = pytest.mark.django_db


def restored(*arguments: str) -> str:
    said = io.StringIO()
    call_command("hub_restored", *arguments, stdout=said)
    return said.getvalue()


def test_it_says_what_it_will_mark_before_it_asks(monkeypatch):
    where, other = connection(), connection("erp")
    for number in range(3):
        pending(where, str(number))
    pending(other)
    finished = pending(other, "2")
    Operation.objects.filter(pk=finished.pk).update(
        state="confirmed", confirmed_at=timezone.now(), yields_ref=False
    )
    said = io.StringIO()
    monkeypatch.setattr("builtins.input", lambda _: "no")
    with pytest.raises(CommandError, match="Nothing was changed"):
        call_command("hub_restored", stdout=said)
    assert "4 unfinished operations" in said.getvalue()
    assert "  crm: 3 pending\n  erp: 1 pending\n" in said.getvalue()
    assert not Installation.objects.exclude(epoch=1).exists()


def test_without_a_terminal_nobody_agreed(monkeypatch):
    def end(_):
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    with pytest.raises(CommandError, match="Nothing was changed"):
        restored()


def test_epoch_tokens_and_versions_start_above_all_that_was_given_out():
    """F81, F82: whatever the lost installation gave out and the backup forgot lies below."""
    row = pending(connection())
    Operation.objects.filter(pk=row.pk).update(lease_token=77)
    Installation.objects.update_or_create(
        pk=1, defaults={"epoch": 4, "token_base": 5, "version_base": 6}
    )
    before = timezone.now()
    said = restored("--yes")
    mine = Installation.objects.get(pk=1)
    assert (mine.epoch, mine.version_base) == (5, 6 + restore.STEP)
    assert mine.token_base == 77 + restore.STEP
    assert mine.restored_at is not None
    assert before <= mine.restored_at <= timezone.now()
    assert "epoch 5" in said


def test_an_epoch_the_rows_know_of_is_passed_too():
    """The installation's row may come from an older backup than an operation's."""
    row = pending(connection())
    Operation.objects.filter(pk=row.pk).update(epoch=9)
    restored("--yes")
    assert Installation.objects.get(pk=1).epoch == 10


def test_twice_is_as_safe_as_once():
    restored("--yes")
    restored("--yes")
    mine = Installation.objects.get(pk=1)
    assert (mine.epoch, mine.token_base) == (3, 2 * restore.STEP)


def test_it_refuses_while_a_worker_may_still_send():
    heartbeat("host-9-x", age=1)
    with pytest.raises(CommandError, match="host-9-x on host"):
        restored("--yes")
    assert Heartbeat.objects.exists()
    assert not Installation.objects.exclude(epoch=1).exists()


def test_heartbeats_of_the_backup_are_removed():
    heartbeat(age=3600)
    restored("--yes")
    assert not Heartbeat.objects.exists()


def test_the_moment_may_be_named_but_not_ahead():
    at = timezone.now() - timedelta(hours=2)
    restored("--yes", "--at", at.isoformat())
    assert Installation.objects.get(pk=1).restored_at == at
    ahead = (timezone.now() + timedelta(hours=1)).isoformat()
    with pytest.raises(CommandError, match="future"):
        restored("--yes", "--at", ahead)
    with pytest.raises(CommandError, match="is no time"):
        restored("--yes", "--at", "yesterday")


@pytest.mark.django_db(transaction=True)
def test_a_worker_of_the_old_epoch_claims_nothing_more():
    """F81: it ends instead, so that it is started anew."""
    where = connection()

    def raise_it(step: str) -> None:
        if step == "claim.before" and not raised:
            raised.append(step)
            pending(where)
            Heartbeat.objects.all().delete()
            restore.raise_epoch()

    raised: list[str] = []
    drain = Drain(budget=20, name="old", steps=raise_it)
    with pytest.raises(NotOurTime, match="epoch 2"):
        drain.run()
    assert Operation.objects.get().state == "pending"
    assert Operation.objects.get().attempts == 0
