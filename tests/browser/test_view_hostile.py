"""Hostile text stays text, and pages of other origins read nothing."""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from arpo.actions import Type
from arpo.storage.run_folder import RunFolder
from browsers import FOREIGN, serving, visiting
from viewed_runs import config, failure, malformed, played

SCRIPT = "<script>window.pwned = 1</script></script><img src=x onerror='window.pwned = 2'>"
LINK = "javascript:window.pwned=3"
EVIL = f"{SCRIPT} {LINK} \u202e\u0000 {{{{7*7}}}} '\"`$&"
TASK = f"{SCRIPT}{LINK}/../..?x=1#y%2e"


def hostile(name):
    """Hostile text as thought, error and label of an action."""
    good, bad = played(name, TASK, 1.0, thought=EVIL), malformed(name, TASK)
    return replace(bad, turns=(good.turns[0], replace(bad.turns[1], actions=(Type(text=EVIL),), error=EVIL)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=alert(1)>"
    store = RunFolder(folder)
    store.write_recipe(config())
    store.add_trajectory(hostile("batch-1-0-0"))
    store.add_trajectory(played("batch-1-0-1", TASK, 0.0, thought="x" * 2_000_000))
    store.add_failure(failure("batch-1-1-0", TASK))
    store.log_metrics(1, {"success": 0.5, SCRIPT: 1.0, "__proto__": 2.0, "constructor": 3.0})
    store.close()
    return folder


@pytest.fixture(scope="module")
def address(folder):
    with serving(folder) as found:
        yield found


def check_harmless(page):
    assert page.evaluate("window.pwned") is None
    assert page.locator("main script, main iframe, main object, main [onerror]").count() == 0
    addresses = page.locator("a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    # Views of this page, and the GIF of an episode.
    assert addresses and all(address.startswith(("#/", "./api/s/")) for address in addresses)


def test_hostile_text_is_shown_as_text_on_every_page(visit):
    sources = visit.page.evaluate("fetch('./api/sources').then(answer => answer.json())")
    source = visit.page.evaluate("encodeURIComponent", sources["sources"][0]["id"])
    task = visit.page.evaluate("encodeURIComponent", TASK)
    for view in (
        "batches",
        "batch/1",
        "group/batch-1-0",
        "episodes",
        f"episodes?task={task}",
        "episodes?text=%3Cscript%3E",
        "episode/batch-1-0-0",
        "episode/batch-1-0-0?step=2",
        "episode/batch-1-0-0?step=2&view=raw",
        "episode/batch-1-0-0?step=1&view=tokens&colour=__proto__",
        "episode/batch-1-0-1",
        "tasks",
        f"task/{task}",
        "faults",
        "timeline",
        "recipe",
        "recipe?against=%3Cimg%3E",
    ):
        check_harmless(visit.open(f"/s/{source}/{view}"))
    check_harmless(visit.open("/runs"))
    check_harmless(visit.open(f"/runs?runs={source}&metrics=__proto__,constructor,%3Cscript%3E"))
    page = visit.open(f"/s/{source}/episode/batch-1-0-0?step=1")
    expect(page.locator(".answer .thought")).to_contain_text(SCRIPT)
    visit.faults[:] = [fault for fault in visit.faults if "404" not in fault and "422" not in fault]


def test_a_hostile_address_shows_a_message(visit):
    for fragment in (
        "/__proto__",
        "/s/__proto__/constructor",
        "/%E0%A4%A",
        "/s/x/<img src=x onerror=alert(1)>",
        LINK,
    ):
        page = visit.open(fragment)
        expect(page.get_by_role("alert")).to_be_visible()
        check_harmless(page)


def test_the_token_is_neither_in_the_address_nor_readable(visit):
    assert "token" not in visit.page.url
    assert visit.page.evaluate("document.cookie") == ""


ATTACK = """<!doctype html><title>attack</title><script>
const target = new URLSearchParams(location.search).get("target");
const tries = {
  fetch: async () => (await fetch(target + "api/sources", { credentials: "include" })).text(),
  opaque: async () => (await fetch(target + "api/sources", { mode: "no-cors" })).text(),
  script: () => load("script", target + "static/export.js"),
  json: () => load("script", target + "api/sources"),
  style: () => load("link", target + "static/style.css"),
  picture: () => load("img", target + "static/icon.svg"),
  post: async () => (await fetch(target + "api/sources", { method: "POST", credentials: "include" })).text(),
};
function load(tag, address) {
  return new Promise((done, fail) => {
    const element = document.createElement(tag);
    Object.assign(element, { onload: () => done("loaded"), onerror: () => fail("refused") });
    if (tag === "link") element.rel = "stylesheet";
    element[tag === "link" ? "href" : "src"] = address;
    document.documentElement.append(element);
  });
}
async function attack() {
  const results = {};
  for (const [name, run] of Object.entries(tries)) results[name] = await run().catch(() => "refused");
  return results;
}
</script><iframe id="frame"></iframe>"""


class Attacker(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(ATTACK.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def attacker():
    """The port of a server with the attacking page."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", FOREIGN])  # the first is of the same site: cookies are sent
def test_another_origin_can_neither_read_nor_embed_the_pages(browser, address, attacker, host):
    with visiting(browser, address) as visit:
        context, target = visit.page.context, visit.address
        page = context.new_page()
        page.goto(f"http://{host}:{attacker}/?target={target}")
        results = page.evaluate("attack()")
        assert {name: value for name, value in results.items() if value not in ("refused", "")} == {}
        page.evaluate("target => { document.getElementById('frame').src = target }", target)
        page.wait_for_timeout(500)
        assert not any("arpo view" in frame.content() for frame in page.frames[1:] if frame.url == target)


def test_another_name_of_this_machine_is_refused(browser, address):
    page = browser.new_page()
    answer = page.goto(address.replace("127.0.0.1", FOREIGN))
    assert answer.status == 421
    page.close()


def test_without_a_token_there_is_no_page(browser, address):
    page = browser.new_page()
    answer = page.goto(address.split("?")[0])
    assert answer.status == 403
    assert "arpo view" in page.content() and page.locator("main").count() == 0
    page.close()


def test_the_fixture_visits_the_hostile_server(browser, address, folder):
    with visiting(browser, address) as visit:
        expect(visit.open("/runs").get_by_role("row", name=folder.name)).to_be_visible()
