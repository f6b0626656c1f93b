"""The dashboard in a real browser, on runs of a real graph: what it shows, its keys, its looks, its accessibility.

Where the machine has no Chromium, one comes from npm, as axe-core does. Where none can be fetched or none starts, the
tests are skipped, and say what was tried.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from testbed.chromium import Chromium, ChromiumUnavailable, chromium
from testbed.npm import NpmUnavailable, npm_package
from tests.support.pages import pictures
from tests.support.runs.watched import make_runs
from tests.support.servers.trainer_server import TOKEN, TrainerServer, trainer_server_on

pytestmark = pytest.mark.slow

AXE = "axe-core@4.14.1"
IMAGES = Path(__file__).parents[3] / "docs" / "images"
PAGES = (
    "/",
    "/ui/policies/agent",
    "/ui/runs",
    "/ui/jobs",
    "/ui/groups?scenario=note&policy=agent&version=0",
    "/ui/scenarios?id=note",
    "/ui/diff",
    "/ui/runs/nobody",
    "/ui/login",
)
PATIENCE = 60_000
"""Milliseconds for which the browser waits for what is expected."""


@pytest.fixture(scope="module")
def program() -> Chromium:
    try:
        return chromium()
    except ChromiumUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def watched(program: Chromium, tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[TrainerServer]:
    """A server with the runs of `make_runs`."""
    notes = tmp_path_factory.mktemp("data") / "notes"
    notes.mkdir()
    (notes / "old.md").write_text("yesterday: rain")
    with trainer_server_on(tmp_path_factory.mktemp("home"), base_model) as server:
        with server.http() as http:
            assert http.post("/api/policies", json={"name": "agent"}).status_code == 201
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ART_BASE_URL", server.url)
            patch.setenv("ART_API_KEY", TOKEN)
            asyncio.run(make_runs(notes))
        yield server


@pytest.fixture(scope="module")
def browser(program: Chromium, watched: TrainerServer) -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program.program, env=program.env, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, from npm."""
    try:
        return (npm_package(AXE) / "axe.min.js").read_text()
    except NpmUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, watched: TrainerServer, browser: Any) -> Iterator[Any]:
    """A page that is logged in. It fails the test where a script fails or the content policy is broken."""
    size = {"width": 1280, "height": 860}
    context = browser.new_context(base_url=watched.url, viewport=size, color_scheme=request.param, locale="en-GB")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda said: wrong.append(said.text) if said.type == "error" and "404" not in said.text else None
    )
    page.goto("/ui/runs")
    assert page.url.endswith("/ui/login?next=/ui/runs")
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector(".live[data-state=on]")
    assert page.url.endswith("/ui/runs")
    page.scheme = request.param
    yield page
    context.close()
    assert wrong == []


def violations(page: Any, axe: str) -> list[Any]:
    """What axe-core finds. It is put in by the debugger, which the content policy does not hold back."""
    rules = "r => JSON.stringify(r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 200))]))"
    expression = f"{axe}; axe.run().then({rules})"
    session = page.context.new_cdp_session(page)
    asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
    return list(json.loads(session.send("Runtime.evaluate", asked)["result"]["value"]))


def first_run(page: Any, query: str) -> None:
    """Opens the first run of a list."""
    page.goto(f"/ui/runs?{query}")
    page.click(".runs tbody a[href^='/ui/runs/'] >> nth=0")
    page.wait_for_selector(".tree.top")


def test_every_page_is_accessible(page: Any, axe: str) -> None:
    found = {}
    for path in PAGES:
        page.goto(path)
        page.wait_for_load_state("load")
        found[path] = violations(page, axe)
    first_run(page, "scenario=note&version=0&state=whole")
    for summary in page.query_selector_all(".call > details > summary"):
        summary.click()
    page.wait_for_selector(".call:last-child .tokenbox")
    found["a run"] = violations(page, axe)
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_charts_are_drawn_in_a_browser_that_was_started_without_a_locale(page: Any) -> None:
    """Chromium's language has this name then, which Intl refuses."""
    page.context.add_init_script("Object.defineProperty(Navigator.prototype, 'language', {get: () => 'en-US@posix'})")
    page.goto("/")
    page.wait_for_selector(".chart.small canvas")


def test_the_way_from_a_policy_to_a_token(page: Any) -> None:
    page.goto("/")
    page.wait_for_selector(".chart.small canvas")
    page.click("article a >> text=agent")
    page.wait_for_selector("#curve canvas")
    page.select_option("#metric", "reward_mean")
    page.wait_for_selector("#curve[aria-label^='reward_mean by version: 2 values']")
    with page.expect_download() as saved:
        page.click("text=Save picture")
    assert saved.value.suggested_filename == "agent reward_mean.png"
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    assert "for runs" in page.inner_text("section[aria-labelledby=pace]")
    dead = page.inner_text("section[aria-labelledby=dead]")
    assert "<b>hostile</b>" in dead
    page.click("section[aria-labelledby=dead] a >> nth=0")
    assert "it teaches nothing" in page.inner_text("main")

    page.goto("/ui/groups?scenario=note&policy=agent&version=0")
    assert page.locator("article").count() == 4
    first_run(page, "scenario=note&version=0&state=whole")
    text = page.inner_text("main")
    for part in ("plan", "look", "branch 0", "branch 1", "writer", "write_note", "of notes", "today.md", "sunny"):
        assert part in text, part
    assert "made version 1" in text
    page.click(".call > details > summary >> nth=0")
    page.wait_for_selector(".tok.t1")
    colours = set()
    for mode in ("logprob", "gap", "entropy", "advantage", "trained"):
        page.check(f".tokenbox input[value={mode}]")
        colours.add(page.eval_on_selector(".tok", "one => getComputedStyle(one).backgroundColor + one.className"))
        assert page.get_attribute(".tokenbox", "data-mode") == mode
    assert "trainer − sampler" in (page.get_attribute(".tok >> nth=0", "title") or "")
    page.check(".tokenbox input[value=advantage]")


def test_a_run_begins_with_its_task_and_its_conversation(page: Any) -> None:
    first_run(page, "scenario=note&version=0&state=whole")
    assert page.inner_text("h1") == "Write today's note."
    top = {name: page.locator(f"#{name}").bounding_box() for name in ("tree", "feedback")}
    assert top["tree"]["x"] < top["feedback"]["x"], "scores and actions stand at its side"
    assert page.locator("#tree").evaluate("one => one.closest('section').innerText").count("Write today's note.") == 1


def test_hostile_text_does_nothing(page: Any) -> None:
    page.on("dialog", lambda _: pytest.fail("a script of a task ran"))
    first_run(page, "q=onerror")
    for details in page.query_selector_all("details:not([open]) > summary"):
        details.click()
    assert page.title().startswith("Run ro-")
    assert page.locator("main img").count() == 0
    assert "U+202E" in page.inner_text("main")
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, "a long line does not widen the page"


def test_no_page_is_wider_than_a_telephone(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    too_wide = []
    for path in PAGES:
        page.goto(path)
        page.wait_for_load_state("load")
        too_wide += [path] if page.evaluate(wide) else []
    first_run(page, "scenario=note&version=0&state=whole")
    assert too_wide == []
    assert not page.evaluate(wide)
    page.goto("/ui/runs?scenario=note&version=0")
    reward = page.locator(".runs tbody .reward").first.bounding_box()
    assert reward["x"] + reward["width"] <= 390, "the rewards are seen without scrolling"


def test_retries_and_judges_are_shown(page: Any) -> None:
    page.goto("/ui/runs?scenario=note")
    links = [one.get_attribute("href") for one in page.query_selector_all(".runs tbody a[href^='/ui/runs/']")]
    texts = []
    for link in links:
        page.goto(link)
        texts.append(page.inner_text("main"))
    assert any("attempt 1 of 2" in text and "repeated: retry" in text for text in texts)
    assert any("The note is short, and says what was asked." in text for text in texts)
    assert any("It evaluates a version: no step takes it." in text for text in texts)


def test_the_difference_of_two_runs(page: Any) -> None:
    page.goto("/ui/runs?scenario=note&version=0")
    page.check("input[name=a] >> nth=0")
    page.check("input[name=b] >> nth=3")
    page.click("text=Difference of A and B")
    page.wait_for_selector("h2 >> text=Answers, call by call")
    assert page.locator(".messages del, .messages ins, .messages .note").count() > 0


def test_a_click_becomes_a_reward_and_versions_are_promoted(page: Any, watched: TrainerServer) -> None:
    first_run(page, "state=whole&scenario=note&version=1")
    page.fill("input[name=reason]", f"seen in {page.scheme}")
    with page.expect_navigation():
        page.click("text=Good: reward 1")
    assert f"seen in {page.scheme}" in page.inner_text("main")
    run = page.url.rpartition("/")[2]
    with watched.http() as http:
        record = http.get(f"/api/rollouts/{run}").json()
        assert (record["reward"], record["reward_source"]) == (1.0, "dashboard")

        page.on("dialog", lambda dialog: dialog.accept())
        page.goto("/ui/policies/agent")
        page.click("details.menu >> nth=1 >> summary")
        with page.expect_navigation():
            page.click("details.menu[open] button >> nth=0")
        assert http.get("/api/policies/agent").json()["promoted"] == 1
        with page.expect_navigation():
            page.click("text=mean its newest version again")
        assert http.get("/api/policies/agent").json()["promoted"] is None
        page.click("details.menu >> nth=0 >> summary")
        page.fill("details.menu[open] input[name=name]", f"fork-{page.scheme}")
        page.click("details.menu[open] >> text=Fork @")
        page.wait_for_url(f"**/ui/policies/fork-{page.scheme}")


def test_news_come_without_a_reload(page: Any, watched: TrainerServer) -> None:
    with watched.http() as http:
        http.put(f"/api/rollouts/live-{page.scheme}", json={"scenario": "live"})
    page.wait_for_selector("#newer a >> text=new run")


def test_keys_and_looks(page: Any) -> None:
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.className") == "id"
    page.keyboard.press("Enter")
    page.wait_for_selector("h2 >> text=What it did")
    page.wait_for_selector(".live[data-state=on]")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before, "it is remembered"
    first_run(page, "scenario=note&version=0&state=whole")
    call = f"{page.url.partition('#')[0]}#{page.get_attribute('.call', 'id')}"
    page.goto("about:blank")
    page.set_content(f'<a href="{call}">a colleague\'s link, on another site</a>')
    page.click("a")
    page.wait_for_selector(".call[id] .tok", state="visible")
    assert page.url == call
    page.click("text=Log out")
    page.wait_for_selector("#token")


def test_the_pictures_of_the_docs_are_made_again(browser: Any, tmp_path: Path) -> None:
    pictures.take(tmp_path, browser)
    made = {path.name: width(path) for path in tmp_path.iterdir()}
    assert len(made) == 6
    assert made == {name: width(IMAGES / name) for name in made}


def width(picture: Path) -> int:
    """Pixels in a row of a PNG."""
    return int.from_bytes(picture.read_bytes()[16:20])
