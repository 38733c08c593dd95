"""SQLite's one write lock: whoever waits for it gets a turn beside a writer that never rests."""

import sqlite3
import statistics
import threading
import time

import pytest
from django.db import OperationalError, connection, transaction

# PostgreSQL has no lock of the whole database.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


class Busy(threading.Thread):
    """Holds the write lock nine tenths of the time, as a drain at full speed does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turns = 0
        self.ended = threading.Event()

    def run(self) -> None:
        raw = sqlite3.connect(connection.settings_dict["NAME"], timeout=20, isolation_level=None)
        while not self.ended.is_set():
            raw.execute("BEGIN IMMEDIATE")
            time.sleep(0.009)
            raw.execute("COMMIT")
            self.turns += 1
            time.sleep(0.001)
        raw.close()


def test_a_waiting_writer_gets_its_turn() -> None:
    connection.ensure_connection()
    busy = Busy()
    busy.start()
    waited = []
    try:
        for _ in range(15):
            before = busy.turns
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            waited.append(busy.turns - before)
            time.sleep(0.012)
    finally:
        busy.ended.set()
        busy.join(10)
    # Looking as rarely as SQLite does, it would find the lock free at every tenth look.
    assert statistics.median(waited) <= 3, waited


def test_patience_ends_in_the_words_everybody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.ensure_connection()
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"timeout": 0.05})
    raw = sqlite3.connect(connection.settings_dict["NAME"], timeout=20, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(OperationalError, match="locked"), transaction.atomic():
            pass
    finally:
        raw.execute("COMMIT")
        raw.close()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
