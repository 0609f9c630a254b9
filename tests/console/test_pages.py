"""Every page in a real Chromium: nothing in its console, nothing for axe to find, by keyboard alone, in both colour schemes, with
hostile payloads, ten thousand topics, and addresses that show the same again. Skipped, loudly, where there is no Chromium."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintet.client.blocking import sync
from tests.client.server import Server
from tests.console import filling
from tests.console.conftest import Browser
from tests.console.filling import HOSTILE, MARKUP

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(__file__).resolve().parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

playwright = pytest.importorskip("playwright.sync_api", reason="NO PLAYWRIGHT: no page was looked at")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="NO CHROMIUM: no page was looked at (`make test` installs it where it may)"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def filled(server: Server, address: str) -> Iterator[str]:
    """A broker with something on each page."""
    admin = Browser(address).log_in("admin", "admin")
    with filling.filled(server, admin):
        admin.client.close()
        yield address


class Window:
    """A page, and all that its console said."""

    def __init__(self, chromium: Any, address: str, scheme: str) -> None:
        self.address = address
        self.context = chromium.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800})
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))
        self.page.set_default_timeout(30_000)

    def go(self, path: str) -> None:
        self.page.goto(f"http://{self.address}{path}")

    def log_in(self, name: str = "admin", password: str = "admin") -> "Window":
        self.go("/login")
        self.page.fill("input[name=name]", name)
        self.page.fill("input[name=password]", password)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("nav")
        return self

    def shown(self, path: str, wait: str) -> None:
        self.go(path)
        self.page.wait_for_selector(wait)

    def led_to(self, path: str, wait: str) -> None:
        """As by a link: the page is not loaded again, and axe need not be."""
        if not self.page.evaluate("location.pathname !== '/login' && document.querySelector('nav') !== null"):
            self.go("/")
        self.page.evaluate(
            "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')) }", path
        )
        self.page.wait_for_selector("h1")  # while a page loads it has none
        self.page.wait_for_selector(wait)

    def faults(self) -> list[str]:
        """What axe finds."""
        if not AXE.is_file():
            pytest.skip("NO AXE (`make test` installs it): nothing was checked for accessibility")
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


@pytest.fixture(scope="module")
def windows(chromium: Any, filled: str) -> dict[str, Window]:
    return {scheme: Window(chromium, filled, scheme).log_in() for scheme in ("light", "dark")}


PAGES = [
    ("/", ".node"),
    ("/topics", ".line a"),
    ("/topic?topic=hostile", ".plot canvas"),
    ("/messages", ".choice a"),
    ("/messages?topic=hostile", "table.messages td"),
    ("/messages?topic=hostile&search=lone", "table.messages td"),
    ("/message?topic=hostile&partition=0&offset=0", ".journey li"),
    ("/readers", ".line a"),
    (f"/group?topic=hostile&group={MARKUP.replace('=', '%3D')}", ".plot canvas"),
    ("/dead", ".line a"),
    ("/dead?topic=sick", "td button"),
    ("/schemas", ".line a"),
    ("/schemas?topic=sick", "[role=status] p"),
    ("/pipelines", "p.quiet"),
    ("/connections", "table td"),
    ("/access", ".line button"),
    ("/access?tab=rules", ".line button"),
    ("/access?tab=roles", ".line"),
    ("/access?tab=quotas", ".line button"),
    ("/access?tab=why&who=reader&action=publish&topic=x", "ol li"),
    ("/audit", ".line"),
    ("/cluster", ".card h2"),
    ("/configuration", ".line a"),
    ("/configuration?changed=true&key=peers.hmac_secret", ".card h2"),
    ("/transactions", ".line button"),
    ("/delayed", ".line button"),
    ("/caches", ".line a"),
    ("/caches?topic=cache/default/default/shown", ".line bdi"),
    ("/queues", ".line a"),
    ("/peers", ".line bdi"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("path", "wait"), PAGES, ids=[path[:40] for path, _ in PAGES])
def test_every_page_is_quiet_and_accessible(windows: dict[str, Window], scheme: str, path: str, wait: str) -> None:
    window = windows[scheme]
    window.said.clear()
    window.led_to(path, wait)
    assert [*window.faults(), *window.said] == []
    assert window.page.title() != "owned"


def test_all_pages_of_the_menu_are_looked_at(windows: dict[str, Window]) -> None:
    links = windows["light"].page.eval_on_selector_all("nav a", "links => links.map(link => link.getAttribute('href'))")
    assert set(links) == {path.partition("?")[0] for path, _ in PAGES} - {"/topic", "/message", "/group"}


PHONE = {"width": 390, "height": 800}
WIDER = "document.documentElement.scrollWidth - innerWidth"


def test_on_a_phone_no_page_is_wider_than_the_screen(chromium: Any, filled: str) -> None:
    window = Window(chromium, filled, "light").log_in()
    window.page.set_viewport_size(PHONE)
    wider = {}
    for path, wait in PAGES:
        window.led_to(path, wait)
        wider[path] = window.page.evaluate(WIDER)
    assert not any(wider.values()), {path: pixels for path, pixels in wider.items() if pixels}
    window.page.evaluate("document.querySelector('main').style.width = '600px'")
    assert window.page.evaluate(WIDER) > 0, "the control: a page that is too wide is noticed"
    window.context.close()


# The entry of this page in the menu, whole in sight; and the labels of the map that reach over their nodes.
IN_SIGHT = """() => { const at = document.querySelector('nav [aria-current]').getBoundingClientRect();
                       return at.left >= 0 && at.right <= innerWidth }"""
TOO_LONG = """() => [...document.querySelectorAll('.node')].filter((node) => [...node.querySelectorAll('text')].some(
    (text) => text.getBBox().x + text.getBBox().width > node.querySelector('rect').getBBox().width - 8)).length"""


def test_on_a_phone_the_menu_shows_where_one_is_and_bytes_stay_in_line(chromium: Any, filled: str) -> None:
    window = Window(chromium, filled, "dark").log_in()
    window.page.set_viewport_size(PHONE)
    for path in ("/transactions", "/queues", "/configuration", "/"):
        window.led_to(path, "main h1")
        window.page.wait_for_function(IN_SIGHT)
    window.page.evaluate("document.querySelector('nav').scrollLeft = 900")
    assert not window.page.evaluate(IN_SIGHT), "the control"
    window.shown("/message?topic=hostile&partition=0&offset=3", "pre.value.hex")
    lines = "document.querySelector('pre.value').clientHeight / parseFloat(getComputedStyle(document.querySelector('pre.value')).lineHeight)"
    assert window.page.evaluate(lines) < 20, "256 bytes are 16 lines"
    window.context.close()


def test_what_is_cut_can_be_read(windows: dict[str, Window]) -> None:
    window = windows["light"]
    window.shown("/", ".node")
    assert window.page.evaluate(TOO_LONG) == 0
    labels = window.page.eval_on_selector_all(".node text:first-of-type", "all => all.map(one => one.textContent)")
    assert any("…" in label and label.endswith("shown") for label in labels), "the end of a long name is kept"
    window.page.evaluate("document.querySelector('.node text').textContent = 'W'.repeat(30)")
    assert window.page.evaluate(TOO_LONG) == 1, "the control"
    window.shown("/delayed", ".line")
    cell = window.page.locator(".line [role=cell]", has_text="<img").first
    cell.hover()
    assert cell.get_attribute("title") == MARKUP


def test_hostile_payloads_stay_text(windows: dict[str, Window]) -> None:
    window = windows["light"]
    window.said.clear()
    shown = {}
    for offset, name in enumerate(HOSTILE):
        window.shown(f"/message?topic=hostile&partition=0&offset={offset}", "pre.value")
        shown[name] = window.page.inner_text("pre.value")
    assert "<script>" in shown["script"]
    assert "⟨001B⟩[31m" in shown["terminal"] and "\x1b" not in shown["terminal"]
    assert "⟨202E⟩" in shown["bidi"] and "\u202e" not in shown["bidi"]
    assert "000000  00 01 02" in shown["bytes"] and "000000  ed a0 80" in shown["surrogate"]
    assert "123456789012345678901234567890" in shown["number"] and "1.00000000000000000001" in shown["number"]
    assert len(shown["large"]) < 400_000
    window.shown(f"/topic?topic={MARKUP.replace('=', '%3D')}", "h1")
    assert MARKUP in window.page.inner_text("h1")
    assert window.page.query_selector("main img") is None
    assert window.said == [] and window.page.title() != "owned"


def test_a_sabotaged_page_would_be_noticed(windows: dict[str, Window]) -> None:
    """The control: what the tests above look for is seen when it is there."""
    window = windows["light"]
    window.shown("/topics", ".line a")
    window.said.clear()
    window.page.evaluate(
        "try { document.body.innerHTML = '<b>x</b>' } catch (refused) { console.error(String(refused)) }"
    )
    assert window.said and "TrustedHTML" in "".join(window.said), "markup from text is refused by the policy"
    window.page.evaluate(
        "document.querySelector('input').removeAttribute('aria-label'); document.querySelector('input').placeholder = ''"
    )
    assert any("label" in fault for fault in window.faults())
    window.said.clear()


def test_by_keyboard_alone(chromium: Any, filled: str) -> None:
    window = Window(chromium, filled, "light")
    page = window.page
    window.go("/login")
    page.wait_for_selector("input[name=name]:focus")
    page.keyboard.type("admin")
    page.keyboard.press("Tab")
    page.keyboard.type("admin")
    page.keyboard.press("Enter")
    page.wait_for_selector("nav")

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} cannot be reached with Tab")

    tab_to('nav a[href="/topics"]')
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Topics')")
    tab_to("main input[type=search]")
    page.keyboard.type("sick")
    page.wait_for_selector(".foot:has-text('2 in all')")
    tab_to('.line a[href="/topic?topic=sick"]')
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('sick')")
    tab_to("main button")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    tab_to("dialog textarea")
    page.keyboard.type("by keyboard")
    tab_to("dialog button[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog [role=status] a")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("Control+k")
    page.wait_for_selector("dialog.palette input:focus")
    page.keyboard.type("audit")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Audit')")
    assert window.said == []
    window.context.close()


def test_addresses_show_the_same_again(windows: dict[str, Window]) -> None:
    page, window = windows["light"].page, windows["light"]
    window.shown("/topics?filter=sick&sort=rate&down=true", ".line a")
    assert page.input_value("main input[type=search]") == "sick"
    assert page.get_attribute("[role=columnheader][aria-sort]", "aria-sort") == "descending"
    page.click(".line a >> nth=0")
    page.wait_for_selector("h1:has-text('sick')")
    page.go_back()
    page.wait_for_selector(".foot:has-text('2 in all')")
    assert page.url.endswith("/topics?filter=sick&sort=rate&down=true")
    page.fill("main input[type=search]", "sick-d")
    page.wait_for_selector(".foot:has-text('1 in all')")
    shared = page.url
    page.reload()
    page.wait_for_selector(".foot:has-text('1 in all')")
    assert page.url == shared and "filter=sick-d" in shared


def test_a_person_without_rights_sees_no_more_than_on_the_wire(chromium: Any, filled: str) -> None:
    window = Window(chromium, filled, "dark").log_in("reader", "reader-word")
    assert "/audit" not in window.page.inner_html("nav")
    window.shown("/topic?topic=hostile", ".failure")
    assert "may not do this" in window.page.inner_text(".failure")
    window.context.close()


def test_ten_thousand_topics_stay_few_rows(server: Server, windows: dict[str, Window]) -> None:
    with sync.connect(server.url) as bus:
        for number in range(10_000):
            bus.publish(f"many/{number:05}", b"x", qos=0)
    window = windows["light"]
    window.shown("/topics?filter=many/", ".line a")
    window.page.wait_for_selector(".foot:has-text('10,000 in all')")
    assert len(window.page.query_selector_all(".line")) < 80
    window.page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
    window.page.wait_for_selector("a:has-text('many/09999')")
    assert len(window.page.query_selector_all(".line")) < 80


def test_the_session_ends_where_it_is_ended(chromium: Any, filled: str) -> None:
    window = Window(chromium, filled, "light").log_in()
    window.page.click("text=Log out")
    window.page.wait_for_selector("input[name=password]")
    window.go("/topics?filter=x")
    window.page.wait_for_selector("input[name=password]")
    assert json.dumps(window.page.url).count("next=") == 1, "after the login the page that was asked for is shown"
    window.context.close()
