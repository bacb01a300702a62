"""A headless Chromium for tests and pictures of pages: the machine's own, driven by Selenium; nothing is fetched."""

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = ("chromium", "google-chrome"), "chromedriver"
FLAGS = (
    "--headless",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
WIDE, NARROW = (1240, 900), (375, 740)


def missing() -> list[str]:
    """The programs that are needed and not there."""
    return [*([] if _chromium() else [" or ".join(CHROMIUM)]), *([] if shutil.which(DRIVER) else [DRIVER])]


def _chromium() -> str:
    return next((path for name in CHROMIUM if (path := shutil.which(name))), "")


@dataclass(frozen=True)
class Browser:
    """One tab."""

    driver: Any

    def open(self, path: Path, *, size: tuple[int, int] = WIDE, scheme: str = "light", scale: float = 1) -> None:
        """A page of a file, as a screen of this size sees it that prefers these colours."""
        width, height = size
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        self.prefer(scheme)
        self.driver.get_log("performance")
        self.driver.get(path.absolute().as_uri())

    def prefer(self, scheme: str) -> None:
        """Say which colours the machine prefers: light or dark."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **parameters: Any) -> Any:
        """One of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def complaints(self) -> list[str]:
        """What the page has written to the console since it was asked last: errors, and what its policy refused."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """What was asked for since the page was opened, the page apart."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            told = message["params"]
            if message["method"] == "Network.requestWillBeSent" and told.get("documentURL") == self.driver.current_url:
                found.append(told["request"]["url"])
        return [url for url in found if url != self.driver.current_url and not url.startswith("data:")]

    def picture(self, first: str, last: str, *, margin: int = 14) -> bytes:
        """The page from one element to another as PNG, whatever the size of the screen; both by their selectors."""
        self.settle()
        top, bottom, width = self.run(
            "const box = (selector) => document.querySelector(selector).getBoundingClientRect();"
            "return [box(arguments[0]).top + scrollY, box(arguments[1]).bottom + scrollY, innerWidth]",
            first,
            last,
        )
        top = max(0, top - margin)
        clip = {"x": 0, "y": top, "width": width, "height": bottom + margin - top, "scale": 1}
        shot = self.command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def settle(self) -> None:
        """Wait until everything that was asked for has been drawn."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, ended for certain."""
    options = webdriver.ChromeOptions()
    options.binary_location = _chromium()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="rlh-browser-") as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which(DRIVER)))
        try:
            yield Browser(driver)
        finally:
            driver.quit()
