"""Headless Chromium of the distribution, for tests of the page."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

WIDTH, HEIGHT = 1280, 800
COLOURS = 64  # of a screenshot: text on a plain ground needs no more


def missing() -> list[str]:
    """Programs that are not installed."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


class Browser:
    """A tab. `scheme`: dark or light."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, token: str = "") -> None:
        """Shows the page; with a token as after a sign-in."""
        if token:
            self.driver.get(urljoin(url, "/v1/ping"))  # of the same origin
            self.run("sessionStorage.setItem('synergy-token', arguments[0])", token)
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        """What is shown there; "" where there is nothing."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def until(self, script: str, *arguments: object, timeout_s: float = 60.0) -> Any:
        """Waits until the script returns something that is true."""
        end_s = time.monotonic() + timeout_s
        while not (found := self.run(script, *arguments)):
            if time.monotonic() > end_s:
                raise AssertionError(
                    f"never true: {script} {arguments}; shown: {self.text()[:3000]}; {self.problems()}"
                )
            time.sleep(0.1)
        return found

    def until_text(self, words: str, selector: str = "body", timeout_s: float = 60.0) -> None:
        self.until(
            "return (document.querySelector(arguments[0])?.innerText ?? '').includes(arguments[1])",
            selector,
            words,
            timeout_s=timeout_s,
        )

    def scheme(self, scheme: str) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
        )

    def type(self, selector: str, text: str) -> None:
        field = self.driver.find_element("css selector", selector)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Keys, for whatever has the focus."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """Tag, id and text of what has the focus."""
        return str(
            self.run("const e = document.activeElement; return `${e.tagName} ${e.id} ${e.innerText.slice(0, 40)}`")
        )

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def problems(self) -> list[str]:
        """What the console complained about since the last look: script errors, what the policy has refused."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def shoot(self, path: Path, height: int = HEIGHT) -> None:
        """Writes a small PNG of the view."""
        self.resize(WIDTH, height)
        self.run("window.scrollTo(0, 0); document.activeElement.blur()")
        time.sleep(0.4)  # the charts are drawn anew for the size
        picture = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)

    def transferred(self) -> dict[str, int]:
        """Bytes over the wire by file, without the API's answers."""
        script = (
            "return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".map(e => [e.name, e.encodedBodySize])"
        )
        return {name: size for name, size in self.run(script) if "/v1/" not in name}

    def first_paint_ms(self) -> float:
        script = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        return float(self.until(script))


@contextmanager
def browser(options: Sequence[str] = ()) -> Iterator[Browser]:
    """A new one with an empty profile."""
    chosen = webdriver.ChromeOptions()
    chosen.binary_location = shutil.which("chromium") or ""
    for option in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={WIDTH},{HEIGHT}",
        "--force-color-profile=srgb", "--hide-scrollbars", "--no-first-run", "--disable-background-networking", *options,
    ):  # fmt: skip
        chosen.add_argument(option)
    chosen.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=chosen, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
