"""Debian's Chromium, driven over its DevTools protocol: open a page, ask it things, take its picture."""

import base64
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--force-color-profile=srgb", "--font-render-hinting=none", "--remote-debugging-port=0"),
)
PATIENCE = 120.0


class Chromium:
    """A browser. Each of its tabs has cookies and a cache of its own."""

    def __init__(self, home: Path) -> None:
        program = shutil.which("chromium")
        assert program, "Debian's package chromium is missing"
        self.home = home
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={home}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        try:
            port, path = self._address()
            self._devtools = f"ws://127.0.0.1:{port}/devtools"
            self._line = Line(f"ws://127.0.0.1:{port}{path}")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        self._end()

    def _end(self) -> None:
        """End what was started, by its id."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _address(self) -> list[str]:
        """The port, and the path of the browser itself."""
        file, until = self.home / "DevToolsActivePort", time.monotonic() + PATIENCE
        while not (file.exists() and file.read_text().count("\n") == 1):
            assert self._process.poll() is None, "chromium ended by itself"
            assert time.monotonic() < until, "chromium did not start"
            time.sleep(0.05)
        return file.read_text().split()

    @contextmanager
    def tab(self) -> Iterator["Tab"]:
        context = self._line.ask("Target.createBrowserContext")
        target = self._line.ask("Target.createTarget", url="about:blank", **context)["targetId"]
        tab = Tab(f"{self._devtools}/page/{target}")
        try:
            yield tab
        finally:
            tab.close()
            self._line.ask("Target.disposeBrowserContext", **context)


class Line:
    """A connection of the protocol."""

    def __init__(self, address: str) -> None:
        self._last = 0
        self._heard: list[dict[str, Any]] = []
        self._open = ExitStack()
        self._socket = self._open.enter_context(connect(address, max_size=None, open_timeout=PATIENCE, proxy=None))

    def close(self) -> None:
        self._open.close()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while (message := self._receive()).get("id") != self._last:
            pass
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._socket.recv(timeout=PATIENCE))
        if "method" in message:
            self._heard.append(message)
        return message


class Tab(Line):
    """`errors` lists errors of the console, the network and the content security policy."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.ask(f"{domain}.enable")

    def _receive(self) -> dict[str, Any]:
        message = super()._receive()
        if "method" in message:
            self.errors += complaints(message)
        return message

    def show(self, *, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def cookie(self, name: str, value: str, url: str) -> None:
        assert self.ask("Network.setCookie", name=name, value=value, url=url)["success"]

    def open(self, url: str) -> None:
        """Go there and wait for the page, its scripts and its fonts."""
        self._heard.clear()
        self.ask("Page.navigate", url=url)
        while not any(message["method"] == "Page.loadEventFired" for message in self._heard):
            self._receive()
        self.evaluate("document.fonts.ready.then(() => true)")
        self.until("typeof Alpine === 'undefined' || !document.querySelector('html[x-cloak]')")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; of a promise, once it is kept."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, patience: float = PATIENCE) -> None:
        """Wait until the page says so."""
        end = time.monotonic() + patience
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot["data"]))


def complaints(message: dict[str, Any]) -> list[str]:
    """Return what a message of the protocol reports as wrong with the page."""
    method, params = message["method"], message["params"]
    if method == "Runtime.exceptionThrown":
        return [json.dumps(params["exceptionDetails"])]
    if method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
        return [f"{params['entry']['text']} {params['entry'].get('url', '')}"]
    if method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
        return [json.dumps(params["args"])]
    if method == "Audits.issueAdded" and params["issue"]["code"] == "ContentSecurityPolicyIssue":
        return [json.dumps(params["issue"]["details"])]
    return []
