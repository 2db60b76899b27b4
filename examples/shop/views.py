"""Count page views, and report how many are missing. The counts and the position are in one file."""

import json
import os
from pathlib import Path

from topics.client import Gap, Topics

file = Path("views.json")
state = json.loads(file.read_text()) if file.exists() else {"seq": 0, "lost": 0, "views": {}}

with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    for item in topics.read("views", from_seq=state["seq"]):
        if isinstance(item, Gap):
            print(f"lost {item.missed} views: records {item.first_seq} to {item.last_seq} ({item.reason})")
            state["lost"] += item.missed
            state["seq"] = item.last_seq
        else:
            page = item.data["page"]
            state["views"][page] = state["views"].get(page, 0) + 1
            state["seq"] = item.seq

for page, count in sorted(state["views"].items()):
    print(f"{page}: {count}" + (f" to {count + state['lost']}" if state["lost"] else ""))

half = file.with_suffix(".new")
half.write_text(json.dumps(state))
half.replace(file)  # counts and position change together, or not at all
