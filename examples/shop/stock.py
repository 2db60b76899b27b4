"""Keep the stock in SQLite. Each order counts once, even if this program or the server is killed."""

import os
import sqlite3

from topics.client import Gap, Topics

db = sqlite3.connect("stock.db")
with db:
    db.execute("CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, quantity INTEGER)")
    db.execute("CREATE TABLE IF NOT EXISTS progress (seq INTEGER)")
    if db.execute("SELECT count(*) FROM progress").fetchone() == (0,):
        db.execute("INSERT INTO progress VALUES (0)")
        db.executemany("INSERT INTO stock VALUES (?, ?)", [("V60", 1000), ("KETTLE", 5)])

[position] = db.execute("SELECT seq FROM progress").fetchone()
with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    for order in topics.follow("orders", from_seq=position):
        if isinstance(order, Gap):
            raise SystemExit(
                f"orders {order.first_seq} to {order.last_seq} are lost ({order.reason}): count the shelves"
            )
        sku = order.data["sku"]
        with db:  # one transaction: the stock and the position change together, or not at all
            db.execute("UPDATE stock SET quantity = quantity - ? WHERE sku = ?", (order.data["qty"], sku))
            db.execute("UPDATE progress SET seq = ?", (order.seq,))
            [left] = db.execute("SELECT quantity FROM stock WHERE sku = ?", (sku,)).fetchone()
            # Before the commit: if this program is killed here, it writes the same record with the same key again.
            topics.append("stock", {"sku": sku, "left": left}, tag=sku, key=f"order-{order.seq}")
        print(f"{sku}: {left} left", flush=True)
