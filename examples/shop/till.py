"""Take an order: python till.py NUMBER SKU QUANTITY EMAIL"""

import os
import sys

from topics.client import Topics

number, sku, quantity, email = sys.argv[1:]
order = {"sku": sku, "qty": int(quantity), "email": email}

with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    # The topic remembers the key: an order that is sent twice is stored once.
    done = topics.append("orders", order, tag=f"order-{number}", key=f"order-{number}")
print(f"order {number} is record {done.seq}" + (", already stored" if done.deduped else ""))
