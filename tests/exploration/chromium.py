"""A headless Chromium, driven by the WebDriver protocol (https://www.w3.org/TR/webdriver2) without other packages."""

import json
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "" if DRIVER and BROWSER else "needs chromium and chromedriver (Debian: chromium chromium-driver)"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
KEYS = {"enter": "\ue007", "space": " "}
OPENER = build_opener(ProxyHandler({}))


class Element:
    def __init__(self, browser, reference):
        self.browser, (self.reference,) = browser, reference.values()

    def call(self, action, body):
        return self.browser.call("POST", f"/element/{self.reference}/{action}", body)

    def type(self, text):
        self.call("value", {"text": text})

    def replace(self, text):
        self.call("clear", {})
        self.type(text)

    def click(self):
        self.call("click", {})

    def value(self):
        return self.browser.call("GET", f"/element/{self.reference}/property/value")

    @property
    def text(self):
        return self.browser.call("GET", f"/element/{self.reference}/text")


class Browser:
    def __init__(self, address):
        self.address = address

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with OPENER.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            raise LookupError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def all(self, css):
        found = self.call("POST", "/elements", {"using": "css selector", "value": css})
        return [Element(self, each) for each in found]

    def one(self, css):
        return self.wait(lambda: self.all(css))[0]

    def run(self, script):
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def resize(self, width, height):
        self.call("POST", "/window/rect", {"width": width, "height": height})

    def wait(self, condition, seconds=60):
        """Return the first value of a condition that is true, which may fail to find what is not there yet."""
        end = time.monotonic() + seconds
        while True:
            try:
                if value := condition():
                    return value
            except LookupError:
                pass
            assert time.monotonic() < end, f"nothing within {seconds} s: {self.run('return document.body.innerText')}"
            time.sleep(0.05)


@contextmanager
def chromium(folder):
    """Give a browser with an empty profile in a folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    browser = Browser(f"http://127.0.0.1:{port}")
    options = {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"]}
    always = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    try:
        session = None
        while session is None:
            try:
                session = browser.call("POST", "/session", {"capabilities": {"alwaysMatch": always}})["sessionId"]
            except OSError:  # it does not listen yet
                assert driver.poll() is None, "chromedriver ended"
                time.sleep(0.05)
        browser.address += f"/session/{session}"
        try:
            yield browser
        finally:  # or the browser would outlive a test that fails
            browser.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(timeout=20)
