"""The form that the console makes from the schema of a topic."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import needs_browser
from tests.console.conftest import OpenPage
from tests.console.seeding import Shop

pytestmark = needs_browser

SCHEMA = {
    "type": "object",
    "required": ["sku", "qty", "customer"],
    "properties": {
        "sku": {"type": "string", "description": "the article", "maxLength": 20},
        "qty": {"type": "integer", "minimum": 1},
        "size": {"enum": ["S", "M", 42]},
        "gift": {"type": "boolean"},
        "price": {"type": ["number", "null"]},
        "customer": {"$ref": "#/$defs/person"},
        "lines": {
            "type": "array",
            "items": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
        },
        "anything": {},
    },
    "$defs": {
        "person": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "partner": {"$ref": "#/$defs/person"}},
        }
    },
}


def opened(open_page: OpenPage, shop: Shop, url: str, topic: str, **options: Any) -> Page:
    shop.put(topic, schema=SCHEMA)
    page = open_page(url, f"topics/{topic}", expect=("400 (Bad Request)",), **options)
    page.get_by_role("button", name="Write record").click()
    return page


def text_of(page: Page) -> Any:
    return json.loads(page.get_by_label("Data, any JSON value").input_value())


def test_form_and_text_stay_in_step(open_page: OpenPage, shop: Shop, url: str) -> None:
    page = opened(open_page, shop, url, "formed")
    dialog = page.get_by_role("dialog")
    data = dialog.get_by_label("Data, any JSON value")
    assert text_of(page) == {"customer": {}}
    expect(dialog.get_by_label("sku required")).to_be_visible()
    expect(dialog.get_by_text("the article. maxLength 20")).to_be_visible()
    dialog.get_by_label("sku").fill("V60")
    dialog.get_by_label("qty").fill("2")
    dialog.get_by_label("size").select_option("42")
    dialog.get_by_label("gift").select_option("true")
    dialog.get_by_label("name", exact=False).first.fill("Ada")
    dialog.get_by_role("button", name="Add partner").click()
    dialog.get_by_role("group", name="partner").get_by_label("name").fill("Bob")
    dialog.get_by_role("button", name="Add lines").click()
    dialog.get_by_role("button", name="Add an item").click()
    dialog.get_by_role("group", name="lines 1").get_by_label("n required").fill("7")
    dialog.get_by_label("anything").fill('{"a": [1]}')
    assert text_of(page) == {
        "sku": "V60", "qty": 2, "size": 42, "gift": True, "customer": {"name": "Ada", "partner": {"name": "Bob"}},
        "lines": [{"n": 7}], "anything": {"a": [1]},
    }  # fmt: skip
    data.fill('{"sku": "A", "qty": 12345678901234567890, "price": 1.10, "other": 1e400, "customer": {"name": "Eve"}}')
    expect(dialog.get_by_label("qty")).to_have_value("12345678901234567890")
    expect(dialog.get_by_role("group", name="partner").get_by_label("name")).to_have_count(0)
    expect(dialog.get_by_text("Only in the text: other")).to_be_visible()
    dialog.get_by_label("sku").fill("B")
    text = data.input_value()
    for number in ("12345678901234567890", "1.10", "1e400"):
        assert number in text, "numbers stay as they were written"
    data.fill('{"sku": ')
    expect(dialog.get_by_role("status").filter(has_text="not valid JSON")).to_be_visible()
    expect(dialog.get_by_label("sku")).to_have_value("B")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_error_of_the_server_is_shown_at_its_field(
    open_page: OpenPage, shop: Shop, url: str, scheme: str, width: int
) -> None:
    topic = f"formed.{scheme}"
    page = opened(open_page, shop, url, topic, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("sku").fill("V60")
    dialog.get_by_label("qty").fill("none")
    send = dialog.get_by_role("button", name="Write record")
    send.click()
    wrong = dialog.locator("[aria-invalid=true]")
    expect(wrong).to_have_value("none")
    expect(wrong).to_be_focused()
    expect(dialog.locator(".field-error").filter(has_text='"none" is not of type')).to_be_visible()
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/schema-form-{scheme}-{width}.png")
    dialog.get_by_label("qty").fill("1")
    send.click()
    expect(dialog.get_by_label("name", exact=False)).to_be_focused()
    expect(dialog.locator(".field-error").filter(has_text='"name" is a required property')).to_be_visible()
    assert dialog.evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth"), "nothing is cut off"
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    expect(dialog).not_to_be_visible()
    [record] = shop.send("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0})["records"]
    assert record["data"] == {"sku": "V60", "qty": 1, "customer": {"name": "Ada"}}
