"""Take 200 orders one after the other, and check that each acknowledged one is stored once."""

import os
from collections import Counter

from topics.client import Record, Topics

acknowledged = []
with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    for number in range(200):
        # The client makes a key for each append. After a broken connection it sends the order again with its key.
        topics.append("orders", {"sku": "V60", "qty": 1, "email": "cleo@example.com"}, tag=f"rush-{number}")
        acknowledged.append(f"rush-{number}")
        if len(acknowledged) == 50:
            print("50 orders are acknowledged", flush=True)
    stored = Counter(item.tag for item in topics.read("orders") if isinstance(item, Record))

missing = [tag for tag in acknowledged if stored[tag] == 0]
repeated = [tag for tag in acknowledged if stored[tag] > 1]
print(f"{len(acknowledged)} acknowledged, {len(missing)} missing, {len(repeated)} repeated")
