"""Take the pictures of the console, from `topics demo`: all of them with `make screenshots`, or those that are named.

python tools/console_shots.py console-timeline
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "images"
PLAY_S = 75  # how long the shop plays before the pictures: the plots need something to show
SIZE = {"width": 1200, "height": 760}
# Name of the picture, page of the console, colour scheme, what to wait for, and the part of the page to show.
SHOTS = (
    ("console-topic", "topics/orders", "light", ".activity .cap", ""),
    ("console-timeline", "topics/orders?view=seq", "light", ".timeline .cap", ".timeline-frame"),
    ("console-map", "map", "light", ".graph .box", ""),
    ("console-overview", "", "dark", ".plot .stroke", ""),
    ("console-queue", "queues/emails?tab=dead", "light", ".jobs td", ""),
)


def main() -> int:
    """Play the shop, then take one picture after the other."""
    named = sys.argv[1:]
    FOLDER.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "topics", "demo", "--json", "--time", "10m"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    try:
        url = json.loads(demo.stdout.readline())["url"]
        time.sleep(PLAY_S)
        _lose_orders(url)
        browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            for name, path, scheme, wanted, part in SHOTS:
                if named and name not in named:
                    continue
                page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
                _take(page, f"{url}/console#/{path}", wanted, part, FOLDER / f"{name}.png")
            browser.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(30)
    return 0


def _lose_orders(url: str) -> None:
    """Delete the orders of a customer, and let a cap evict the oldest ones: the timeline then has all of it."""
    orders = f"{url}/v0/topics/orders"
    httpx.post(f"{orders}/delete", json={"match": ["tag", "Eq", "eu:bob"]}).raise_for_status()
    kept = httpx.get(orders).json()["count"] * 3 // 4
    httpx.put(orders, json={"cap_records": kept}).raise_for_status()


def _take(page: Page, url: str, wanted: str, part: str, file: Path) -> None:
    page.goto(url)
    page.locator(wanted).first.wait_for()
    page.wait_for_timeout(4500)  # rates need two polls
    shown = page.locator("section", has=page.locator(part)).last if part else page
    shown.screenshot(path=str(file))
    print(f"{file.name}: {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    sys.exit(main())
