"""The dashboard over many runs: how long each query of a page takes, and the page itself.

    python -m benchmarks.stress.dashboard [--json] [--runs 100000] [--times 15] [--home DIR]

Fills the list of runs of a home with RUNS runs, by the calls by which clients and ledger fill it: 50 versions of one
policy, eight runs in a group, a fifth of all runs evaluations, rewards of two nodes and three completions a run. Then
it times each query that a page makes, and starts a server on the home and times the pages over HTTP, TIMES times each,
each time after a run has changed. Where a Chromium starts, it times the same in a browser: to the first row of the
list, to the first call of a run, to the difference of two runs, and to a group, each from the click to the element.
`median` and `worst` are milliseconds. `processor` is the processor time of a query, or of the server for a page: on a
busy machine it says what they cost. The home is deleted at the end, unless DIR names it; where that has runs, no
more are recorded. The last line under --json is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.progress import track
from rich.table import Table

from testbed.chromium import ChromiumUnavailable, chromium
from testbed.server_process import EngineProcess, ServerProcess
from testbed.tiny_model import tiny_base
from trainer_server.common import Home
from trainer_server.ledger.base import CompletionSummary
from trainer_server.ledger.run_list import RunFilter, RunList
from trainer_server.ledger.run_repository import ReportedRun, RunRepository
from trainer_server.ledger.run_rows import note_reward
from trainer_server.ledger.sqlite import SQLiteBooks
from trainer_server.wire import RunTrace

POLICY = "agent"
VERSIONS = 50
OF_A_GROUP = 8
SCENARIOS = 500
CALLS = 3
"""Completions of a run."""
_BATCH = 500
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty")


def fill(book: RunRepository, runs: int) -> None:
    """Records runs, the oldest first, the last one now."""
    rng, began = random.Random(0), time.time() - 20.0 * runs
    for first in track(range(0, runs, _BATCH), "runs", console=Console(stderr=True)):
        numbers = range(first, min(first + _BATCH, runs))
        book.traces([_told(number, began + 20.0 * number, runs, rng) for number in numbers])
        book.follow([_call(number, call, began + 20.0 * number, runs) for number in numbers for call in range(CALLS)])


def _version(number: int, runs: int) -> int:
    return number * VERSIONS // runs


def _told(number: int, started: float, runs: int, rng: random.Random) -> ReportedRun:
    reward = round(rng.random() * (1 + _version(number, runs) / VERSIONS), 1)
    place = {"namespace": "model:1", "started": started, "seconds": 1.0}
    values = {
        "id": f"tr-{number}",
        "scenario": {
            "id": f"scenario-{number // OF_A_GROUP % SCENARIOS}",
            "input": " ".join(rng.choices(_WORDS, k=40)),
        },
        "started": started,
        "seconds": 5.0,
        "reward": reward,
        "evaluation": number // OF_A_GROUP % 5 == 0,
        "node_rewards": {"planner": reward, "worker/*": reward / 2},
        "nodes": [{**place, "node": name, "attempt": name} for name in ("planner", "worker")],
        "completions": [
            {
                "id": f"completion-{number}-{call}",
                "model": POLICY,
                "version": _version(number, runs),
                "attempt": "planner" if call == 0 else "worker",
                "message": {"role": "assistant", "content": " ".join(rng.choices(_WORDS, k=30))},
                "started": started + call,
            }
            for call in range(CALLS)
        ],
        "error": "ValueError: no such city" if number % 50 == 0 else None,
    }
    return ReportedRun(f"run-{number}", RunTrace.model_validate(values), " ".join(rng.choices(_WORDS, k=30)))


def _call(number: int, call: int, started: float, runs: int) -> CompletionSummary:
    version = _version(number, runs)
    return CompletionSummary(
        number * CALLS + call + 1, started + call, POLICY, version, f"run-{number}", "complete", 200, ""
    )


def queries(runs: RunList, count: int) -> dict[str, Callable[[], object]]:
    """What the pages ask of the list, by name."""
    last = VERSIONS - 1
    newest, middle = runs.page(RunFilter()), runs.page(RunFilter(policy=POLICY, version=VERSIONS // 2))
    row = newest.runs[0]
    scenario = str(row.scenario)
    return {
        "first page of runs": lambda: runs.page(RunFilter()),
        "next page of runs": lambda: runs.page(RunFilter(), newest.next or ""),
        "runs of a version": lambda: runs.page(RunFilter(policy=POLICY, version=VERSIONS // 2), middle.next or ""),
        "runs that failed": lambda: runs.page(RunFilter(failed=True)),
        "runs with a reward of 1.9 or more": lambda: runs.page(RunFilter(min_reward=1.9)),
        "search for two words": lambda: runs.page(RunFilter(search="amber fjord")),
        "search that finds nothing": lambda: runs.page(RunFilter(search="absent")),
        "count of runs": runs.count,
        "newer runs": lambda: runs.newer(RunFilter(), count - 10),
        "revision": runs.revision,
        "minutes": lambda: runs.minutes(time.time() - 3600),
        "a run": lambda: (runs.run(row.id), runs.versions(row.number), runs.steps(row.number)),
        "a group": lambda: runs.group(scenario, POLICY, last),
        "training by version": lambda: runs.by_version(POLICY, evaluation=False),
        "held out by version": lambda: runs.by_version(POLICY, evaluation=True),
        "training by version, a scenario": lambda: runs.by_version(POLICY, evaluation=False, scenario=scenario),
        "rewards of nodes": lambda: runs.by_node(POLICY),
        "rewards of nodes, a scenario": lambda: runs.by_node(POLICY, scenario),
        "a scenario across versions": lambda: runs.by_scenario(scenario),
        "scenarios of a policy": lambda: runs.scenarios(POLICY),
        "groups of five versions": lambda: runs.groups(POLICY, range(last - 4, last + 1)),
    }


def pages(runs: RunList) -> dict[str, str]:
    """Addresses of pages, by name."""
    row = runs.page(RunFilter()).runs[0]
    return {
        "overview": "/",
        "policy": f"/ui/policies/{POLICY}",
        "curves": f"/api/policies/{POLICY}/curves",
        "curves of a scenario": f"/api/policies/{POLICY}/curves?scenario={row.scenario}",
        "runs": "/ui/runs",
        "runs, next rows": f"/ui/runs/rows?before={runs.page(RunFilter()).next}",
        "runs, searched": "/ui/runs?q=amber+fjord",
        "run": f"/ui/runs/{row.id}",
        "group": f"/ui/groups?scenario={row.scenario}&policy={POLICY}&version={row.version}",
        "scenario": f"/ui/scenarios?id={row.scenario}",
        "throughput": "/ui/throughput.json",
        "status": "/api/status",
    }


@contextmanager
def server_on(home: Path, scratch: Path) -> Iterator[ServerProcess]:
    """A server on a home, over the small engine, with the policy."""
    base = tiny_base(scratch)
    engine = EngineProcess(scratch / "engine.log", base.name)
    server = ServerProcess(home, base, options=("--engine-url", engine.url, "--no-trainer-low-priority"))
    try:
        engine.start()
        engine.until_ready()
        server.start()
        server.until_ready()
        with httpx.Client(base_url=server.url, headers=server.headers, timeout=600) as http:
            known = http.get("/api/policies").raise_for_status().json()["policies"]
            if POLICY not in [policy["name"] for policy in known]:
                http.post("/api/policies", json={"name": POLICY}).raise_for_status()
        yield server
    finally:
        server.stop()
        engine.stop()


def in_a_browser(server: ServerProcess, runs: RunList, times: int, before: Callable[[], object]) -> dict[str, Any]:
    """Milliseconds from an address to the element that a reader waits for, by name; empty where no Chromium starts."""
    try:
        program = chromium()
    except ChromiumUnavailable as missing:
        print(missing, file=sys.stderr)
        return {}
    first, second = runs.page(RunFilter()).runs[:2]
    group = f"/ui/groups?scenario={first.scenario}&policy={POLICY}&version={first.version}"
    waits = {
        "first row": ("/ui/runs", ".runs tbody a"),
        "first row of a search": ("/ui/runs?q=amber+fjord", ".runs tbody a"),
        "a run": (f"/ui/runs/{first.id}", ".call summary"),
        "a difference": (f"/ui/diff?a={first.id}&b={second.id}", ".messages .message"),
        "a group": (group, ".side article"),
        "a policy and its curve": (f"/ui/policies/{POLICY}", "#curve canvas"),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program.program, env={**program.env}, args=["--no-sandbox"]
        )
        page = browser.new_page(base_url=server.url, viewport={"width": 1440, "height": 900})
        page.goto("/ui/login?next=/ui/runs")
        page.fill("#token", server.headers["Authorization"].split()[1])
        page.keyboard.press("Enter")
        page.wait_for_selector(".runs tbody a")

        def show(path: str, selector: str) -> None:
            page.goto(path, wait_until="commit")
            page.wait_for_selector(selector)

        shown = {name: timed(partial(show, *wait), times, before) for name, wait in waits.items()}
        browser.close()
    return shown


def change(books: SQLiteBooks) -> None:
    """Changes a run, so that nothing that was added up before still holds."""
    with books.writing() as db:
        note_reward(db, "run-0", 0.5, "benchmark")


def timed(ask: Callable[[], object], times: int, before: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Milliseconds of a call, after one that warms up. before: is called before each call, and is not timed."""
    ask()
    taken, processor = [], []
    for _ in range(times):
        before()
        begun, used = time.perf_counter(), time.thread_time()
        ask()
        taken.append(1000 * (time.perf_counter() - begun))
        processor.append(1000 * (time.thread_time() - used))
    return {
        "median": statistics.median(taken),
        "worst": max(taken),
        "processor": statistics.median(processor),
    }


def _processor(process: psutil.Process) -> float:
    """Seconds that a process has computed."""
    used = process.cpu_times()
    return float(used.user + used.system)


def measure(where: Path | None, count: int, times: int) -> dict[str, Any]:
    """All figures. where: the home; None: a temporary one."""
    with tempfile.TemporaryDirectory() as scratch:
        home = where or Path(scratch) / "home"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        books = SQLiteBooks(Home(home).rollouts)
        runs = RunList(RunRepository(books))
        begun = time.monotonic()
        if (known := runs.count()) == 0:
            fill(RunRepository(books), count)
        count = known or count
        filled = time.monotonic() - begun
        asked = {name: timed(ask, times) for name, ask in queries(runs, count).items()}
        with server_on(home, Path(scratch)) as server, httpx.Client(base_url=server.url, timeout=120) as http:
            answer = http.post("/ui/login", data={"token": server.headers["Authorization"].split()[1], "next": "/"})
            assert answer.status_code == 303, answer.text

            def get(path: str) -> None:
                http.get(path).raise_for_status()

            process, shown = psutil.Process(server.pid), {}
            for name, path in pages(runs).items():
                before = _processor(process)
                shown[name] = timed(partial(get, path), times, partial(change, books))
                shown[name]["processor"] = 1000 * (_processor(process) - before) / (times + 1)
            browser = in_a_browser(server, runs, times, partial(change, books))
        mib = Home(home).rollouts.stat().st_size / 2**20
        books.close()
    return {"runs": count, "fill_seconds": filled, "mib": mib, "queries": asked, "pages": shown, "browser": browser}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--runs", type=int, default=100_000, help="runs in the list (100000)")
    parser.add_argument("--times", type=int, default=15, help="how often each query and page is timed (15)")
    parser.add_argument("--home", type=Path, help="home whose list is measured, and kept; default: a temporary one")
    options = parser.parse_args(arguments)
    result = measure(options.home, options.runs, options.times)
    table = Table("query or page", "median ms", "worst ms", "processor ms", title=f"{result['runs']:,} runs")
    for kind in ("queries", "pages", "browser"):
        for name, figures in result[kind].items():
            table.add_row(f"{kind}: {name}", *(f"{value:,.1f}" for value in figures.values()))
    Console(stderr=options.json).print(table)
    if options.json:
        print(json.dumps({"benchmark": "dashboard", **result}))


if __name__ == "__main__":
    main()
