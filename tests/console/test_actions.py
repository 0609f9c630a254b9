"""What people do on the pages, in a real Chromium: save a list, keep a view, make a user, verify the audit, send dead letters again."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.server import Server
from tests.console.conftest import Browser
from tests.console.filling import MARKUP
from tests.console.test_pages import CHROMIUM, FLAGS, Window, playwright

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM: no page was used")


@pytest.fixture(scope="module")
def window(server: Server, address: str) -> Iterator[Window]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield Window(browser, address, "light").log_in()
        browser.close()


@pytest.fixture
def page(window: Window) -> Iterator[Any]:
    window.said.clear()
    yield window.page
    assert window.said == [], "nothing is said in the browser's console"


def saved(page: Any, button: str, folder: Path) -> str:
    with page.expect_download() as coming:
        page.click(f"text={button}")
    file = folder / str(coming.value.suggested_filename)
    coming.value.save_as(file)
    return file.read_text()


def test_a_list_is_saved_and_a_spreadsheet_runs_none_of_it(
    admin: Browser, window: Window, page: Any, tmp_path: Path
) -> None:
    formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\uff1d1", "%x|y", 'a "quoted", text', MARKUP]
    for formula in formulas:
        admin.do("/api/publish", topic="formulas", key=formula, value=formula)
    window.shown("/messages?topic=formulas", "table.messages td")
    rows = list(csv.reader(io.StringIO(saved(page, "Save as CSV", tmp_path))))
    cells = [cell for row in rows[1:] for cell in row]
    assert len(rows) == len(formulas) + 1
    assert not [cell for cell in cells if cell.strip()[:1] in tuple("=+-@%\uff1d")]
    admin.do("/api/topic/create", topic="=formula-topic")
    window.shown("/topics?filter=formula", ".line a")
    page.wait_for_selector(".foot:has-text('2 in all')")
    names = [row[0] for row in csv.reader(io.StringIO(saved(page, "Save as CSV", tmp_path)))]
    assert names == ["name", "'=formula-topic", "formulas"]
    lines = saved(page, "Save as JSON lines", tmp_path).splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["=formula-topic", "formulas"], "JSON is as it is"


def test_a_view_is_kept_by_name_and_its_address_shows_the_same(window: Window, page: Any) -> None:
    window.shown("/topics?filter=view-test&sort=rate", ".empty")
    page.click("text=Save view")
    assert page.input_value("dialog input[readonly]").endswith("/topics?filter=view-test&sort=rate")
    page.fill("dialog input:not([readonly])", MARKUP)
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog", state="detached")
    window.shown("/audit", ".line")
    page.click("nav .view a")
    page.wait_for_selector("h1:has-text('Topics')")
    assert page.url.endswith("/topics?filter=view-test&sort=rate")
    assert page.input_value("main input[type=search]") == "view-test"
    assert page.inner_text("nav .view a") == MARKUP and window.faults() == []
    page.evaluate("""localStorage.setItem('views admin', JSON.stringify([
        {name: 'bad', to: 'javascript:document.title=1'}, {name: 'other', to: '//evil.example/'}, {name: 'good', to: '/topics'}, 7]))""")
    page.reload()
    page.wait_for_selector("nav .view")
    assert page.eval_on_selector_all("nav .view a", "links => links.map(link => link.getAttribute('href'))") == [
        "/topics"
    ]
    page.click("nav .view button")
    page.wait_for_selector("nav .view", state="detached")


def test_a_user_and_a_rule_are_made_and_deleted(admin: Browser, window: Window, page: Any) -> None:
    window.shown("/access", ".line button")
    page.click("text=New user")
    page.fill("dialog input >> nth=0", "paged-user")
    page.fill("dialog input[type=password]", "short")
    page.fill("dialog input >> nth=2", "consumer")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .failure")
    window.said.clear()  # the browser says that a request was refused
    page.fill("dialog input[type=password]", "a password that is long")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog", state="detached")
    assert admin.ask("/api/users", filter="paged-user")["rows"][0]["roles"] == ["consumer"]
    page.click("[aria-label='Delete paged-user']")
    page.fill("dialog input", "paged-user")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog", state="detached")
    assert admin.ask("/api/users", filter="paged-user")["total"] == 0
    window.shown("/access?tab=rules", ".empty")
    page.click("text=New rule")
    page.fill("dialog input >> nth=0", "paged-*")
    page.fill("dialog input >> nth=1", "reader, other")
    page.click("dialog button[type=submit]")
    page.wait_for_selector(".line:has-text('paged-*')")
    assert admin.ask("/api/rules")["rows"][0]["users"] == ["reader", "other"]
    admin.do("/api/rule/delete", name="paged-*", typed="paged-*")


def test_the_audit_is_verified_on_its_page(window: Window, page: Any) -> None:
    window.shown("/audit", ".line")
    page.click("text=Verify the chain")
    page.click("dialog button.primary")
    page.wait_for_selector("dialog b:has-text('sound')", timeout=120_000)
    assert window.faults() == []
    page.keyboard.press("Escape")


def test_dead_letters_are_counted_frozen_and_sent_with_a_result_each(admin: Browser, window: Window, page: Any) -> None:
    for number in range(4):
        cause = "too heavy" if number else "too light"
        header = [{"name": "quintet-dead-cause", "value": cause}]
        admin.do("/api/publish", topic="scale-dlq", value=f"letter {number}", headers=header)
    admin.do("/api/topic/create", topic="scale")
    window.shown("/dead?topic=scale", ".bars a")
    page.click(".bars a:has-text('too heavy')")
    page.wait_for_selector("tbody tr:has-text('letter 3')")
    page.wait_for_selector("text=letter 0", state="detached")
    page.click("text=Send all that match again")
    page.wait_for_selector("dialog:has-text('The selection is frozen: 3 letters')")
    admin.do("/api/dead/edit", topic="scale", id="0-2", value="healed")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog:has-text('2 of 3 were sent, 1 refused')")
    results = page.inner_text("dialog .scroll")
    assert results.count("sent") == 2 and "0-2" in results
    page.keyboard.press("Escape")
    admin.do("/api/dead/purge", topic="scale", typed="scale")


def test_a_schema_is_checked_before_it_is_registered(admin: Browser, window: Window, page: Any) -> None:
    first = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
    admin.do("/api/schema/register", topic="paged-schema", type="json", definition=first)
    window.shown("/schemas?topic=paged-schema", "pre.diff")
    page.click("text=New version")
    page.fill("dialog textarea", first.replace("integer", "string"))
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .bad:has-text('may not follow')")
    page.fill("dialog textarea", first.replace("integer", "number"))
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog .good")
    page.click("dialog button[type=submit]")
    page.wait_for_selector("h1:has-text('paged-schema')")
    page.wait_for_selector("pre .good:has-text('number')")


def test_a_node_of_the_map_is_clicked_and_the_map_shows_what_is_near(admin: Browser, window: Window, page: Any) -> None:
    for topic in ("near", "far"):
        admin.do("/api/publish", topic=topic, value="x")
    window.shown("/", ".node.topic:has-text('near')")
    page.wait_for_selector(".node.topic:has-text('far')")
    page.click(".node.topic:has-text('near')")
    page.wait_for_selector("aside:has-text('near')")
    assert page.locator(".node.topic:has-text('far')").count() == 0
    assert "focus=t%3Anear" in page.url
    page.click("text=Show all")
    page.wait_for_selector(".node.topic:has-text('far')")
