"""A small web shop, to show how a web application of your own becomes an environment (docs/browser.md).

    python examples/shop.py            # http://127.0.0.1:8000

Every session has a shop of its own: its name is part of the address, as in /s/anna/. `GET /s/anna/state` is
the state of a session as JSON, `POST /s/anna/reset` makes a new one.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PRODUCTS = {"tea": 4, "coffee": 7, "cup": 9, "kettle": 35}
SIZES = ("small", "medium", "large")
MAX_BODY = 10_000
STYLE = """
body { margin: 0; font: 16px sans-serif; background: #f4f4f4 }
body > * { position: absolute; box-sizing: border-box; margin: 0 }
button, a.button { width: 130px; height: 44px; font: 16px sans-serif; background: #fff; color: #000;
  border: 2px solid #345; border-radius: 6px; display: flex; align-items: center; justify-content: center;
  text-decoration: none }
input, select { height: 36px; font: 16px sans-serif }
"""


def new_state() -> dict[str, Any]:
    return {"cart": {}, "orders": [], "newsletter": False, "size": "medium"}


def at(x: int, y: int, more: str = "") -> str:
    return f'style="left: {x}px; top: {y}px; {more}"'


def action(label: str, do: str, value: str, x: int, y: int) -> str:
    """A button that changes the state."""
    return (
        f'<form method="post" action="do" {at(x, y)}><input type="hidden" name="{do}" value="{value}">'
        f"<button>{label}</button></form>"
    )


def shop_page(state: dict[str, Any]) -> str:
    parts = [f"<h3 {at(20, 12)}>Shop</h3>"]
    for row, (name, price) in enumerate(PRODUCTS.items()):
        y = 50 + 54 * row
        parts.append(f"<span {at(20, y + 12)}>{name}, {price} €</span>")
        parts.append(action(f"Add {name}", "add", name, 140, y))
    parts.append(f'<a class="button" href="cart" {at(310, 50)}>Cart ({sum(state["cart"].values())})</a>')
    parts.append(f'<a class="button" href="settings" {at(310, 104)}>Settings</a>')
    return "".join(parts)


def cart_page(state: dict[str, Any]) -> str:
    listed = ", ".join(f"{count} {name}" for name, count in state["cart"].items()) or "nothing"
    return (
        f"<h3 {at(20, 12)}>Cart</h3><span {at(20, 56)}>You have: {listed}</span>"
        f'<form method="post" action="do" id="order"><input type="hidden" name="buy" value="1"></form>'
        f'<label for="name" {at(20, 110)}>Name</label>'
        f'<input form="order" id="name" name="name" {at(80, 100, "width: 190px")}>'
        f'<button form="order" {at(80, 150)}>Buy</button>'
        f'<form method="post" action="do" {at(310, 104)} onsubmit="return confirm(\'Empty the cart?\')">'
        f'<input type="hidden" name="empty" value="1"><button>Empty</button></form>'
        f'<a class="button" href="./" {at(310, 50)}>Shop</a>'
    )


def settings_page(state: dict[str, Any]) -> str:
    options = "".join(f"<option{' selected' * (size == state['size'])}>{size}</option>" for size in SIZES)
    news = "on" if state["newsletter"] else "off"
    return (
        f"<h3 {at(20, 12)}>Settings</h3><span {at(20, 62)}>Newsletter: {news}</span>"
        + action("Switch", "newsletter", "1", 160, 50)
        + f'<form method="post" action="do" id="look"></form><label for="size" {at(20, 118)}>Size</label>'
        f'<select form="look" id="size" name="size" onchange="this.form.submit()" '
        f"{at(80, 108, 'width: 130px')}>{options}</select>"
        f'<a class="button" href="./" {at(310, 50)}>Shop</a>'
    )


PAGES = {"": shop_page, "cart": cart_page, "settings": settings_page}


def change(state: dict[str, Any], form: dict[str, str]) -> str:
    """Change the state as a form says. Returns the page that follows."""
    if (name := form.get("add")) in PRODUCTS:
        state["cart"][name] = state["cart"].get(name, 0) + 1
        return ""
    if "buy" in form and state["cart"] and form.get("name"):
        state["orders"].append({"name": form["name"], "items": state["cart"]})
        state["cart"] = {}
        return "thanks"
    if "empty" in form:
        state["cart"] = {}
    if "newsletter" in form:
        state["newsletter"] = not state["newsletter"]
        return "settings"
    if form.get("size") in SIZES:
        state["size"] = form["size"]
        return "settings"
    return "cart"


class Shop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sessions: dict[str, dict[str, Any]]

    def do_GET(self) -> None:
        session, page = self.place()
        state = self.sessions.setdefault(session, new_state())
        if page == "state":
            self.answer(json.dumps(state), "application/json")
        elif page == "thanks":
            body = f"<h3 {at(20, 12)}>Thank you</h3>"
            self.answer(f'{body}<a class="button" href="./" {at(310, 50)}>Shop</a>')
        elif page in PAGES:
            self.answer(PAGES[page](state))
        else:
            self.answer("no such page", status=HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        session, page = self.place()
        length = min(int(self.headers.get("Content-Length", 0)), MAX_BODY)
        form = {name: values[0] for name, values in parse_qs(self.rfile.read(length).decode()).items()}
        if page == "reset":
            self.sessions[session] = new_state()
            return self.answer("{}", "application/json")
        following = change(self.sessions.setdefault(session, new_state()), form)
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"/s/{session}/{following}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def place(self) -> tuple[str, str]:
        """The session and the page of the address: ("anna", "cart") of /s/anna/cart."""
        parts = urlsplit(self.path).path.split("/")
        return (parts[2], parts[3]) if len(parts) == 4 and parts[1] == "s" else ("", "none")

    def answer(self, body: str, kind: str = "text/html; charset=utf-8", status: int = HTTPStatus.OK) -> None:
        page = (
            f"<!doctype html><title>Shop</title><style>{STYLE}</style><body>{body}"
            if "html" in kind
            else body
        )
        content = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(port: int) -> ThreadingHTTPServer:
    """A server on the loopback interface. Call its method serve_forever."""
    return ThreadingHTTPServer(("127.0.0.1", port), type("OneShop", (Shop,), {"sessions": {}}))


def main() -> None:
    parser = argparse.ArgumentParser(description="a small web shop")
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    print(f"the shop: http://127.0.0.1:{port}/s/anna/ (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        serve(port).serve_forever()


if __name__ == "__main__":
    main()
