"""docs/recipes/outbox.md: every event of the database is in the topic once, wherever the relay crashes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from tests.docs.recipes.conftest import Kitchen, wait_for
from topics.client import Topics


def test_crash_between_send_and_mark_doubles_nothing(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("outbox")
    assert programs.run("shop.py", "V60", "2") == ["order 1 is stored"]
    topics.put_topic("orders")
    with closing(sqlite3.connect(kitchen.here / "shop.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")  # while this lock is held, the relay can send and cannot delete the row
        with programs.start("relay.py"):
            wait_for(lambda: topics.topic("orders").head_seq == 1)
        db.execute("ROLLBACK")
        assert db.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
        programs.run("shop.py", "KETTLE", "1")
        with programs.start("relay.py") as relay:
            assert [relay.line(), relay.line()] == ["order-1 is record 1 (sent before)", "order-2 is record 2"]
        assert db.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    assert [item.data["id"] for item in topics.read("orders")] == [1, 2]  # type: ignore[union-attr]


def test_relay_waits_for_a_killed_server_and_keeps_the_order(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("outbox")
    programs.run("shop.py", "V60", "1")
    with programs.start("relay.py") as relay:
        assert relay.line() == "order-1 is record 1"
        kitchen.server.kill()
        programs.run("shop.py", "KETTLE", "1")
        programs.run("shop.py", "SCALE", "1")
        kitchen.kill_server()
        assert [relay.line(), relay.line()] == ["order-2 is record 2", "order-3 is record 3"]
    skus = [item.data["sku"] for item in topics.read("orders")]  # type: ignore[union-attr]
    assert skus == ["V60", "KETTLE", "SCALE"]
