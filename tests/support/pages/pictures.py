"""Pictures of the dashboard for the docs, of `art-langgraph demo`: `python -m tests.support.pages.pictures`
writes docs/images/dashboard.png, run.png, policy.png, group.png, difference.png and phone.png. What they show is made
up, and CI can make it again."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from testbed.chromium import chromium
from trainer_server.engines.vllm.command import free_port

IMAGES = Path(__file__).parents[3] / "docs" / "images"


@contextlib.contextmanager
def demo() -> Iterator[dict[str, Any]]:
    """The url, token and policy of a demo that runs."""
    command = [str(Path(sys.executable).with_name("art-langgraph")), "demo", "--port", str(free_port()), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            for _ in range(240):
                with contextlib.suppress(httpx.HTTPError):
                    httpx.get(f"{facts['url']}/ui/login")
                    break
                time.sleep(0.5)
            yield facts
        finally:
            process.terminate()


def take(to: Path, browser: Browser) -> None:
    """Writes the pictures into a directory."""
    with demo() as facts:
        page = browser.new_page(base_url=facts["url"], viewport={"width": 1440, "height": 900}, locale="en-GB")
        page.goto("/ui/login?next=/")
        page.fill("#token", facts["token"])
        page.keyboard.press("Enter")
        for part in (".chart:not(.small) canvas", ".chart.small canvas", ".live[data-state=on]"):
            page.wait_for_selector(part)
        page.screenshot(path=to / "dashboard.png")
        page.goto(f"/ui/policies/{facts['policy']}#scenarios")
        page.wait_for_selector("#curve canvas")
        page.locator("#scenarios").scroll_into_view_if_needed()
        page.evaluate("document.getElementById('scenarios').scrollIntoView()")
        page.screenshot(path=to / "policy.png")
        page.goto(f"/ui/runs?policy={facts['policy']}&version=4&kind=training")
        page.goto(_most_different(page))
        page.screenshot(path=to / "group.png")
        page.click("text=Difference to the first >> nth=0")
        page.wait_for_selector(".live[data-state=on]")
        page.screenshot(path=to / "difference.png")
        page.go_back()
        page.click("article h2 a >> nth=0")
        page.wait_for_selector(".tree.top")
        page.click(".call > details > summary >> nth=0")
        page.wait_for_selector(".tok")
        page.screenshot(path=to / "run.png", full_page=True)
        page.set_viewport_size({"width": 390, "height": 844})
        page.reload()
        page.screenshot(path=to / "phone.png")
        page.close()


def _most_different(page: Page) -> str:
    """Address of a group of the list of runs: its first run, which others are compared with, has a reward of 1, and of
    the four that the picture shows, more differ than in other groups."""
    groups: dict[str, list[str]] = {}
    for row in reversed(page.query_selector_all(".runs tbody tr")):  # a group begins with its oldest run
        address, reward = row.query_selector("a[href^='/ui/groups']"), row.query_selector(".reward")
        groups.setdefault(address.get_attribute("href"), []).append(reward.inner_text())
    return max(groups, key=lambda group: (groups[group][0] == "1.000", len(set(groups[group][:4]))))


if __name__ == "__main__":
    chrome = chromium()
    with sync_playwright() as playwright:
        starter = playwright.chromium
        take(IMAGES, starter.launch(executable_path=chrome.program, env={**chrome.env}, args=["--no-sandbox"]))
