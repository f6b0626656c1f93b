"""The picture of the dashboard's overview, of a quickstart that has ended: `python -m tests.support.pages.pictures
runs/latest` writes docs/images/dashboard.png. The run's home is copied, and served over the small engine."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from testbed.engine_app import make_app
from tests.support.chromium import chromium
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN, trainer_server_over
from trainer_server.engines.package_models import EMBEDDED

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "dashboard.png"


def take(run: Path, to: Path, scheme: str = "light") -> None:
    """Writes a picture.

    Args:
        run: The directory of a quickstart's run.
        to: The PNG file.
        scheme: `light` or `dark`.
    """
    program = chromium()
    with tempfile.TemporaryDirectory() as scratch, serving(make_app(base=EMBEDDED)) as engine:
        home = Path(shutil.copytree(run / "home", Path(scratch) / "home"))
        with trainer_server_over((engine,), home, Path("embedded")) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=program.program, env=program.env, args=["--no-sandbox"]
            )
            size = {"width": 1280, "height": 980}
            page = browser.new_page(viewport=size, color_scheme=scheme, locale="en-GB")
            page.goto(f"{server.url}/ui/login?next=/")
            page.fill("#token", TOKEN)
            page.keyboard.press("Enter")
            for part in (".chart:not(.small) canvas", ".chart.small canvas", ".live[data-state=on]"):
                page.wait_for_selector(part)
            page.screenshot(path=to)
            browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), PICTURE)
