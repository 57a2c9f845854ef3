"""Web pages for the tests of the browser environment, served on the loopback interface."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Each element has a fixed place, so that tests know where to click.
PLACES = {
    "field": (120, 35), "greet": (60, 95), "confirm": (180, 95), "prompt": (300, 95), "tab": (420, 95),
    "download": (540, 95), "select": (90, 155), "blue": (80, 240), "drag": (240, 155), "drop": (340, 155),
    "below": (60, 300),
}  # fmt: skip
MAIN = """<!doctype html><meta charset=utf-8><title>main</title>
<style>body > * { position: absolute; box-sizing: border-box; width: 100px; height: 40px; margin: 0 }</style>
<body style="height: 2000px">
<input id=field style="left: 20px; top: 15px; width: 200px">
<button style="left: 10px; top: 75px" onclick="out.textContent = 'Hello ' + field.value">Greet</button>
<button style="left: 130px; top: 75px" onclick="out.textContent = confirm('Delete 中文?')">Confirm</button>
<button style="left: 250px; top: 75px" onclick="out.textContent = prompt('Name?', 'Bob')">Prompt</button>
<a href=/second target=_blank style="left: 370px; top: 75px; background: #fda">tab</a>
<a href=/file.csv download style="left: 490px; top: 75px; background: #adf">download</a>
<select id=choice style="left: 20px; top: 135px; width: 150px" onchange="out.textContent = choice.value">
<option>Red<option>Green<option>Blue</select>
<div draggable=true ondragstart="event.dataTransfer.setData('text/plain', 'cargo')"
 style="left: 200px; top: 135px; width: 80px; background: #fc8">drag</div>
<div ondragover="event.preventDefault()" ondrop="out.textContent = event.dataTransfer.getData('text/plain')"
 style="left: 300px; top: 135px; width: 80px; background: #8cf">drop</div>
<p id=out style="left: 20px; top: 330px; width: 400px">ready</p>
<script>
  out.textContent = [localStorage.getItem('kept'), document.cookie, devicePixelRatio, innerWidth].join(' ');
  document.addEventListener('contextmenu', event => { out.textContent = 'menu'; event.preventDefault(); });
  document.addEventListener('dblclick', event => { out.textContent = 'double'; });
</script>"""
SLOW = "<p id=out>waiting<script>fetch('/later').then(a => a.text()).then(t => out.textContent = t)</script>"


def _on_click(script):
    return f"<script>document.onclick = () => {{ {script} }}</script>"


ATTACKS = {
    "dialogs": "<script>for (;;) alert('again')</script>",
    "windows": _on_click("for (let i = 0; i < 200; i++) window.open('/second')"),
    "frozen": _on_click("for (;;);"),
    "downloads": _on_click("""for (let i = 0; i < 40; i++) {
      const link = document.createElement('a');
      link.href = '/endless?' + i; link.download = 'f' + i; link.click();
    }"""),
    "reload": "<script>setTimeout(() => location.reload(), 1)</script>",
    "growing": "<script>setInterval(() => document.body.append('x'), 1)</script>",
    "close": _on_click("window.close()"),
    "outside": """<script>
      for (const url of ['http://evil.test/', 'https://evil.test/', 'http://127.0.0.1:1/', 'file:///etc/passwd',
                         'ws://evil.test/', 'http://169.254.169.254/latest'])
        try {
          if (url.startsWith('ws')) new WebSocket(url);
          else fetch(url).then(() => { window.reached = url }, () => 0);
        } catch {}
      const peer = new RTCPeerConnection({iceServers: [{urls: 'stun:evil.test:3478'}]});
      window.candidates = []; peer.onicecandidate = e => e.candidate && candidates.push(e.candidate.address);
      peer.createDataChannel('x'); peer.createOffer().then(o => peer.setLocalDescription(o));
    </script>""",
}


class _Pages(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    later: threading.Event

    def do_GET(self):
        name = self.path.partition("?")[0].strip("/")
        kind = "text/html; charset=utf-8"
        match name:
            case "":
                content = MAIN
            case "second":
                content = "<title>second</title><h1>Second</h1>"
            case "slow":
                content = SLOW
            case "later":
                self.later.wait(20)
                content = "arrived"
            case "file.csv":
                content, kind = "a,b\n", "text/csv"
            case "slow.csv":
                return self.slow_file()
            case "state":
                content, kind = json.dumps({"n": 1}), "application/json"
            case "endless":
                return self.endless()
            case _ if name in ATTACKS:
                content = f"<!doctype html><title>{name}</title><body>{ATTACKS[name]}"
            case _:
                return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())

    def slow_file(self):
        """Its second half comes after a second."""
        self.send_response(200)
        self.send_header("Content-Type", "text/csv")
        self.send_header("Content-Disposition", "attachment")
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(b"a,b\n")
        time.sleep(1.0)
        self.wfile.write(b"1,2\n")

    def endless(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/zip")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(2**20))
        except OSError:
            self.close_connection = True

    def log_message(self, format, *args):
        pass


@contextmanager
def pages():
    """(address, event): the address of the pages; the slow page gets its answer after the event."""
    later = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Pages", (_Pages,), {"later": later}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", later
    finally:
        later.set()
        server.shutdown()
        server.server_close()
