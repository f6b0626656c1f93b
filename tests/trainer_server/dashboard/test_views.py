"""The pages over HTTP: who sees them, what they say, what hostile text does in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from tests.support.patience import until
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.common import Home
from trainer_server.dashboard.sources import Sources
from trainer_server.dashboard.views.events import _changes
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m" + "y" * 5000
PAGES = ["/", "/ui/runs", "/ui/jobs", "/ui/diff", "/ui/policies/agent", "/ui/now", "/ui/throughput.json", "/ui/events"]


@pytest.fixture(scope="module")
def browser(server: TrainerServer) -> Any:
    """A client with the cookie of a login, and no token."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post("/ui/login", data={"token": TOKEN, "next": "/ui/runs?q=a"})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/runs?q=a")
        given = answer.headers["Set-Cookie"].lower()
        assert "httponly" in given
        assert "samesite=strict" in given
        yield http


@pytest.fixture(scope="module")
def run(server: TrainerServer) -> str:
    """A run with a hostile task, a hostile name, a retried node, an MCP call, and a change of its world."""
    with server.http() as http:
        body = {"model": "agent", "messages": [{"role": "user", "content": f"say {HOSTILE[:40]}"}], "max_tokens": 60}
        answer = http.post("/rollouts/viewed/v1/chat/completions", json=body).json()
        place = {"node": "model<b>", "attempt": "1", "namespace": "m", "started": 5.0, "seconds": 1.0}
        trace = {
            "id": "tr-viewed",
            "scenario": {"id": "sc<i>", "input": HOSTILE},
            "started": 4.0,
            "reward": 0.5,
            "reward_reason": "polite & <b>short</b>",
            "metrics": {"<u>": 1.0},
            "graph_id": "<g>",
            "nodes": [{**place, "error": "<err>"}, {**place, "attempt": "2", "started": 7.0}],
            "completions": [
                {
                    "id": answer["id"],
                    "model": "agent",
                    "version": 0,
                    "attempt": "2",
                    "started": 8.0,
                    "message": answer["choices"][0]["message"],
                },
                {"id": None, "model": "gpt<x>", "message": {"content": HOSTILE}, "started": 9.0},
            ],
            "tool_calls": [{"tool": "write<t>", "server": "shop", "result": HOSTILE, "attempt": "2", "started": 8.5}],
            "node_rewards": {"model<b>": 0.25},
            "metadata": {"world": {"changes": [{"where": "<w>", "what": "content", "before": None, "after": "sunny"}]}},
        }
        assert http.put("/api/rollouts/viewed/trace", json=trace).status_code == 204
    return str(answer["id"])


def test_without_a_login_there_is_a_login_page_and_nothing_else(server: TrainerServer) -> None:
    with httpx.Client(base_url=server.url) as http:
        for path in PAGES:
            answer = http.get(path, params={"x": "1"})
            assert (answer.status_code, answer.headers["Location"]) == (303, f"/ui/login?next={path}%3Fx%3D1")
        assert http.post("/ui/logout").status_code == 401
        page = http.get("/ui/login", params={"next": "//evil.example/"})
        assert page.status_code == 200
        assert "evil.example" not in page.text
        assert http.get("/ui/static/app.js").headers["Content-Type"].startswith("text/javascript")
        assert http.get("/ui/static/../__init__.py").status_code in (303, 404)
        assert http.get("/ui/static/%2e%2e/render.py").status_code == 404


def test_a_link_of_another_site_is_asked_for_again_by_the_login_page(server: TrainerServer) -> None:
    with httpx.Client(base_url=server.url) as http:
        asks = {
            site: "data-again" in http.get("/ui/login", headers={"Sec-Fetch-Site": site}).text
            for site in ("cross-site", "same-origin", "none")
        }
        assert asks == {"cross-site": True, "same-origin": False, "none": False}


def test_a_wrong_token_and_a_long_one_are_refused(server: TrainerServer) -> None:
    with httpx.Client(base_url=server.url) as http:
        wrong = http.post("/ui/login", data={"token": "guess"})
        assert (wrong.status_code, "The token is wrong" in wrong.text, wrong.cookies) == (401, True, httpx.Cookies())
        assert http.post("/ui/login", data={"token": "x" * 9000}).status_code == 413
        assert http.get("/api/policies", headers={"Cookie": "art_session_x=1"}).status_code == 401


def test_every_page_has_a_strict_policy_and_no_inline_script_or_style(browser: httpx.Client, run: str) -> None:
    pages = [
        *PAGES[:-2],
        "/ui/runs/viewed",
        f"/ui/completions/{run}",
        "/ui/scenarios?id=sc%3Ci%3E",
        "/ui/login?next=/",
        "/ui/groups?scenario=sc%3Ci%3E&policy=agent&version=0",
        "/ui/diff?a=viewed&b=viewed",
    ]
    for path in pages:
        answer = browser.get(path, follow_redirects=True)
        assert answer.status_code == 200, path
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"
        scripts = re.findall(r"<script[^>]*>", answer.text)
        assert all("src=" in one for one in scripts), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|(src|href|action)=.(https?:)?//", answer.text), (
            path
        )


def test_hostile_text_is_escaped_everywhere(browser: httpx.Client, run: str) -> None:
    for path in (
        "/ui/runs/viewed",
        f"/ui/completions/{run}",
        "/ui/runs?q=viewed",
        "/ui/diff?a=viewed&b=viewed",
        "/ui/groups?scenario=sc%3Ci%3E&policy=agent&version=0",
        "/ui/scenarios?id=sc%3Ci%3E",
        "/ui/policies/agent?scenario=sc%3Ci%3E",
        "/ui/runs?q=%3Cscript%3E",
    ):
        text = browser.get(path).text
        for bad in ("<script>alert", "<b>", "<i>", "<u>", "<err>", "<g>", "<t>", "<x>", "<w>", "\u202e", "\x1b"):
            hostile = text.replace("<b>arguments</b>", "").replace("<b>result</b>", "").replace("<b>answer</b>", "")
            hostile = hostile.replace("<b>Answer</b>", "").replace("<b>model&lt;b&gt;</b>", "")
            assert bad not in hostile, (path, bad)


def test_a_run_shows_its_tree_its_judge_and_its_world(browser: httpx.Client, run: str) -> None:
    text = browser.get("/ui/runs/viewed").text
    for part in (
        "attempt 1 of 2",
        "attempt 2 of 2",
        "&lt;err&gt;",
        "MCP",
        "of shop",
        "polite &amp; ",
        "sunny",
        "What it changed in its world",
        "No step was sent it until now",
        "Another server answered",
        f"/ui/completions/{run}",
    ):
        assert part in text, part
    assert browser.get("/ui/runs/tr-viewed").text.count("ro-") == text.count("ro-"), "the trajectory's id leads there"
    part_only = browser.get(f"/ui/completions/{run}", headers={"HX-Request": "true"}).text
    assert "<html" not in part_only
    assert 'class="tok l' in part_only
    assert "trainer − sampler (not known)" in part_only
    assert "no step was sent it until now" in part_only


def test_a_group_shows_the_trees_of_its_runs(browser: httpx.Client, run: str) -> None:
    text = browser.get("/ui/groups?scenario=sc%3Ci%3E&policy=agent&version=0").text
    for part in ("attempt 1 of 2", "attempt 2 of 2", "of shop", f'hx-get="/ui/completions/{run}"'):
        assert part in text, part
    assert "<details open>" not in text


def test_a_difference_has_no_row_of_errors_where_neither_run_has_one(browser: httpx.Client, run: str) -> None:
    text = browser.get("/ui/diff?a=viewed&b=viewed").text
    assert '<th scope="row">calls</th>' in text
    assert '<th scope="row">error</th>' not in text


async def test_a_run_that_no_client_told_of_shows_what_the_ledger_has(
    server: TrainerServer, browser: httpx.Client
) -> None:
    with server.http() as http:
        body = {"model": "agent", "messages": [{"role": "user", "content": "say plain"}], "max_tokens": 20}
        http.post("/rollouts/untold/v1/chat/completions", json=body)
    await until(lambda: "/ui/runs/untold" in browser.get("/ui/runs", params={"q": "say plain"}).text)
    text = browser.get("/ui/runs/untold").text
    assert "No client told what the graph did" in text
    assert "It has no reward, and no step was sent it." in text


async def test_an_answer_that_looks_like_a_call_says_so(server: TrainerServer, browser: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    asked = {"role": "user", "content": 'say {"name": "look", "arguments": {}}'}
    with server.http() as http:
        body = {"model": "agent", "messages": [asked], "tools": tools, "max_tokens": 80}
        http.post("/rollouts/textual/v1/chat/completions", json=body).raise_for_status()
    await until(lambda: "/ui/runs/textual" in browser.get("/ui/runs", params={"q": "say"}).text)
    assert "looks like a call of look that the parser did not take" in browser.get("/ui/runs/textual").text


def test_a_click_gives_a_reward(server: TrainerServer, browser: httpx.Client, run: str) -> None:
    given = {"reward": 0.25, "reason": "<b>meh", "source": "dashboard"}
    path = "/api/rollouts/viewed/reward"
    assert browser.post(path, json=given).status_code == 401, "another site could have sent it"
    assert browser.post(path, json=given, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 401
    answer = browser.post(path, json=given, headers={"Sec-Fetch-Site": "same-origin"})
    assert (answer.status_code, answer.json()["reward"]) == (200, 0.25)
    text = browser.get("/ui/runs/viewed").text
    assert "&lt;b&gt;meh" in text
    assert "0.250" in text
    assert browser.post("/v1/chat/completions", json={}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 401


def test_the_list_is_paged_and_filtered(browser: httpx.Client, run: str) -> None:
    assert "/ui/runs/" in browser.get("/ui/runs").text
    # runs of other tests may be on the server: this one began in 1970, and is the last of all
    assert "/ui/runs/viewed" in browser.get("/ui/runs", params={"scenario": "sc<i>"}).text
    assert "/ui/runs/viewed" in browser.get("/ui/runs", params={"scenario": "sc<i>", "version": "0"}).text
    assert "No run is like that." in browser.get("/ui/runs", params={"min_reward": "99"}).text
    assert "No run is like that." in browser.get("/ui/runs", params={"until": "1970-01-01T00:00:01Z"}).text
    for wrong in ({"version": "x"}, {"min_reward": "nan"}, {"since": "soon"}, {"version": "9" * 15}):
        answer = browser.get("/ui/runs", params=wrong)
        assert (answer.status_code, "That cannot be asked" in answer.text) == (422, True)
    assert "new run" in browser.get("/ui/runs/newer", params={"newest": 0}).text


def test_what_is_not_there_is_a_page_too(browser: httpx.Client) -> None:
    for path in (
        "/ui/runs/nobody",
        "/ui/completions/nothing",
        "/ui/jobs/job-1",
        "/ui/policies/nobody",
        "/ui/groups?scenario=none",
        "/ui/diff?a=nobody&b=nobody",
        "/ui/nothing",
    ):
        answer = browser.get(path)
        assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8"), path


async def test_runs_are_listed_by_their_words(server: TrainerServer, browser: httpx.Client, run: str) -> None:
    row = browser.get("/ui/runs", params={"scenario": "sc<i>"}).text
    assert re.search(r'<a href="/ui/runs/viewed"><span title="[^"]*">&lt;script&gt;', row)
    assert re.search(r'<a href="/ui/groups[^"]*">group</a>', row)
    with server.http() as http:
        body = {"model": "agent", "messages": [{"role": "user", "content": "say b"}], "max_tokens": 5}
        http.post("/rollouts/unregistered/v1/chat/completions", json=body).raise_for_status()
        body = {"model": "agent", "prompt": "say c", "max_tokens": 5}
        http.post("/rollouts/prompted/v1/completions", json=body).raise_for_status()
    for name, words in (("unregistered", "say b"), ("prompted", "say c")):
        await until(lambda name=name: f"/ui/runs/{name}" in browser.get("/ui/runs", params={"q": name}).text)
        assert f'<a href="/ui/runs/{name}">{words}</a>' in browser.get("/ui/runs", params={"q": name}).text
        assert f"<h1>{words}</h1>" in browser.get(f"/ui/runs/{name}").text
    completion = browser.get(f"/ui/completions/{run}").text
    assert f'Of the run <a href="/ui/runs/viewed#{run}"><span title=' in completion


def test_a_run_that_failed_and_has_no_reward_says_so_below_its_title(
    server: TrainerServer, browser: httpx.Client
) -> None:
    trace = {"id": "tr-lost", "scenario": {"id": "lost", "input": {"x": 1, "y": "b"}}, "started": 1.0, "error": "E"}
    with server.http() as http:
        assert http.put("/api/rollouts/lost/trace", json=trace).status_code == 204
    text = browser.get("/ui/runs/lost").text
    assert "<h1>x: 1, y: b</h1>" in text
    assert re.search(r"no reward</span>\s*<span class=\"state failed\">failed</span>", text)


async def test_pages_of_a_new_server_say_what_makes_something(tmp_path: Path, base_model: Path) -> None:
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    transport = httpx.ASGITransport(create_app(config, TOKEN))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.post("/ui/login", data={"token": TOKEN})).status_code == 303
        for path, words in (
            ("/", "There is no policy yet."),
            ("/ui/runs", "There is no run yet."),
            ("/ui/runs?q=a", "No run is like that."),
            ("/ui/jobs", "There is no job yet"),
            ("/ui/diff", "Give the ids of two runs"),
        ):
            assert words in (await http.get(path)).text, path


def test_a_policy_has_curves_versions_and_what_to_do_with_them(browser: httpx.Client) -> None:
    text = browser.get("/ui/policies/agent").text
    assert 'data-action="/api/policies/agent/promotion"' in text
    assert "/api/policies/agent/versions/0/export?format=peft" in text
    assert isinstance(browser.get("/api/policies/agent/curves").json(), dict)
    export = browser.get("/api/policies/agent/versions/0/export", params={"format": "peft"})
    assert (export.status_code, export.headers["Content-Type"]) == (200, "application/x-tar")
    assert set(browser.get("/ui/throughput.json").json()) == {"x", "completions", "tokens", "failed"}


async def test_a_policy_shows_what_several_evaluation_runs_of_a_scenario_tell(
    server: TrainerServer, browser: httpx.Client
) -> None:
    rewards = {"sometimes": (1.0, 0.0, 0.0, 0.0), "always": (1.0, 1.0, 1.0, 1.0)}
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "evaluated"}).status_code == 201
        for scenario, reward, number in (
            (name, value, at) for name, of in rewards.items() for at, value in enumerate(of)
        ):
            rollout = f"evaluated-{scenario}-{number}"
            body = {"model": "evaluated", "messages": [{"role": "user", "content": "say a"}], "max_tokens": 3}
            answer = http.post(f"/rollouts/{rollout}/v1/chat/completions", json=body).json()
            call = {"id": answer["id"], "model": "evaluated", "version": 0, "started": 1.0}
            trace = {
                "id": f"tr-{rollout}", "scenario": {"id": scenario, "input": "say a"}, "started": 1.0, "reward": reward,
                "evaluation": True, "completions": [call],
            }  # fmt: skip
            assert http.put(f"/api/rollouts/{rollout}/trace", json=trace).status_code == 204
    await until(lambda: "pass@4" in browser.get("/ui/policies/evaluated").text)
    text = re.sub(r"<[^>]+>", " ", browser.get("/ui/policies/evaluated").text)
    assert re.search(r"@0\s+2\s+4 or more\s+62\.5 %\s+75\.0 %\s+100\.0 %\s+1(\.000?)?\s+0\.125\s+0\.25", text), text
    assert "Evaluations with several runs" not in browser.get("/ui/policies/agent").text


def test_a_policy_lists_scenarios_by_their_words_with_successes_by_version(browser: httpx.Client) -> None:
    text = re.sub(r"<[^>]+>", " ", browser.get("/ui/policies/evaluated").text)
    assert re.findall(r"say a\s+@0 (\d/\d)", text) == ["4/4", "1/4"]
    overview = browser.get("/").text
    assert "Runs have rewards, and no step has trained on them yet." in overview
    assert "Runs have rewards, and no step has trained on them yet." in browser.get("/ui/policies/evaluated").text
    heading = re.sub(r"<[^>]+>", "", browser.get("/ui/policies/evaluated?scenario=always").text)
    assert "Learning curves: say a" in heading


def test_curves_of_a_scenario_and_of_its_nodes(browser: httpx.Client, run: str) -> None:
    found = browser.get("/api/policies/agent/curves", params={"scenario": "sc<i>"}).json()
    assert set(found) == {"reward of runs", "success of runs", "reward of node model<b>"}
    assert all(curve["x"] == [0] for curve in found.values())
    assert found["reward of node model<b>"]["y"] == [0.25]
    assert browser.get("/api/policies/agent/curves", params={"scenario": "unknown"}).json() == {}
    for path in ("/ui/scenarios?id=sc%3Ci%3E", "/ui/policies/agent?scenario=sc%3Ci%3E"):
        text = browser.get(path).text
        assert 'data-curves="/api/policies/agent/curves?scenario=sc%3Ci%3E"' in text, path
        assert "<option>reward of node model&lt;b&gt;</option>" in text, path
    assert 'href="/ui/policies/agent?scenario=sc%3Ci%3E"' in browser.get("/ui/policies/agent").text
    assert "No run of this scenario" in browser.get("/ui/policies/agent?scenario=unknown").text


def test_changes_are_sent_while_a_page_is_open(server: TrainerServer, browser: httpx.Client) -> None:
    with browser.stream("GET", "/ui/events") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "retry: 3000"
        with server.http() as http:
            http.put("/api/rollouts/eventful", json={})
        news = next(line for line in lines if line.startswith("data:"))
    assert "runs" in json.loads(news.removeprefix("data:"))


async def test_an_open_page_does_not_hold_up_the_end_of_the_server(tmp_path: Path, base_model: Path) -> None:
    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, TOKEN)
    stream = _changes(Request({"type": "http"}), Sources(app.state.server))
    assert await anext(stream) == "retry: 3000\n\n"
    app.state.server.ending.set()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


NOT_UTF8 = json.dumps({"id": "t", "scenario": {"id": "\xff"}, "started": 1.0}, ensure_ascii=False)


def test_a_trace_that_is_none_is_refused(server: TrainerServer) -> None:
    with server.http() as http:
        for body, where in (("[]", ""), ("{", ""), ('{"id": "t"}', "scenario"), ("\xff", ""), (NOT_UTF8, "utf-8")):
            answer = http.put("/api/rollouts/odd/trace", content=body.encode("latin-1"))
            assert (answer.status_code, where in answer.json()["error"]["message"]) == (422, True), body
        assert http.put("/api/rollouts/.odd/trace", json={}).status_code == 422
