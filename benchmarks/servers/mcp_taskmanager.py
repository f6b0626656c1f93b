"""@kazuph/mcp-taskmanager on a file of requests with their tasks, some of them done, some of those approved."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx

_REQUESTS = {
    "Move the office to the second floor": (
        "Measure the rooms",
        "Pack the archive",
        "Move the telephones",
        "Label keys",
    ),
    "Prepare the summer fair": ("Book the band", "Order the tents", "Print the posters", "Hire two cooks"),
    "Publish the yearly report": ("Collect the figures", "Write the summary", "Draw the charts", "Proofread the text"),
    "Replace the heating": ("Compare three offers", "Empty the cellar", "Order the boiler", "Insulate the pipes"),
    "Train the new colleagues": ("Write a timetable", "Set up accounts", "Show the warehouse", "Plan a lunch"),
    "Open the shop in Turin": ("Find a lawyer", "Sign the lease", "Choose the furniture", "Announce the opening"),
    "Digitize the old photographs": ("Sort the boxes", "Clean the scanner", "Scan the prints", "Name the people"),
    "Organize the chess tournament": ("Reserve the hall", "Invite the clubs", "Buy the trophies", "Draw the pairs"),
}


def make_requests(where: Path, seed: int) -> Path:
    """Makes the file.

    Args:
        where: An empty directory.
        seed: Seed of the requests, and of how far they are.

    Returns:
        The file.
    """
    rng, path, number = random.Random(f"requests-{seed}"), where / "tasks.json", 0
    requests = []
    for at, text in enumerate(rng.sample(list(_REQUESTS), len(_REQUESTS)), 1):
        titles, finished = rng.sample(_REQUESTS[text], rng.randrange(3, 5)), rng.randrange(0, 4)
        tasks = []
        for place, title in enumerate(titles):
            number, done = number + 1, place < finished
            tasks.append(
                {
                    "id": f"task-{number}",
                    "title": title,
                    "description": f"{title} by the {rng.randrange(2, 29)}th",
                    "done": done,
                    "approved": done and (place < finished - 1 or rng.random() < 0.5),
                    "completedDetails": "As planned" if done else "",
                }
            )
        details = f"Budget of {rng.randrange(200, 9_000, 50)} euros"
        one = {"requestId": f"req-{at}", "originalRequest": text, "splitDetails": details}
        requests.append({**one, "tasks": tasks, "completed": False})
    path.write_text(json.dumps({"requests": requests}, indent=2))
    return path


SERVER = BenchmarkServer(
    "mcp-taskmanager",
    lambda: npx("@kazuph/mcp-taskmanager@1.1.1"),
    make_requests,
    {**npm_cache(), "TASK_MANAGER_FILE_PATH": "{world}"},
    use="development",
)
