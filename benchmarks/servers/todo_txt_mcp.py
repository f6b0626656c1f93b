"""todo-txt-mcp on a list of things to do, with priorities, projects, contexts and dates, and one of what is done."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi

_TASKS = (
    ("Call the plumber about the leak", "house", "phone"), ("Buy paint for the fence", "garden", "store"),
    ("Renew the passport", "travel", "office"), ("Book the train to Porto", "travel", "computer"),
    ("Write the minutes of the board meeting", "club", "computer"), ("Order firewood", "house", "phone"),
    ("Prune the apple tree", "garden", "home"), ("Send the invoice to Liskov", "work", "computer"),
    ("Review the slides for Monday", "work", "computer"), ("Return the library books", "errands", "town"),
    ("Pick up the suit from the cleaner", "errands", "town"), ("Ask Karen for the recipe", "kitchen", "phone"),
    ("Descale the kettle", "kitchen", "home"), ("Fix the bicycle lamp", "house", "home"),
    ("Pay the membership fee", "club", "computer"), ("Plan the menu for Saturday", "kitchen", "home"),
    ("Sow the radishes", "garden", "home"), ("Compare offers for insurance", "money", "computer"),
    ("File the tax return", "money", "computer"), ("Get cash for the market", "money", "town"),
    ("Answer the letter from the landlord", "house", "home"), ("Print the boarding passes", "travel", "office"),
    ("Back up the photos", "computer", "home"), ("Replace the smoke detector", "house", "home"),
    ("Thank Grace for the flowers", "friends", "phone"), ("Buy a present for Ada", "friends", "town"),
    ("Water the tomatoes", "garden", "home"), ("Check the budget of the newsletter", "work", "office"),
)  # fmt: skip
_TODAY = date(2026, 11, 20)


def make_todo_list(where: Path, seed: int) -> Path:
    """Makes the directory of the two lists.

    Args:
        where: An empty directory.
        seed: Seed of the tasks.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"todo-{seed}"), where / "todo"
    root.mkdir()
    open_tasks, done = [], []
    for at, (text, project, context) in enumerate(rng.sample(_TASKS, len(_TASKS))):
        created = _TODAY - timedelta(days=rng.randrange(1, 60))
        line = f"{created} {text} +{project} @{context}"
        if at % 4 == 3:
            done.append(f"x {created + timedelta(days=rng.randrange(1, 9))} {line}")
            continue
        if rng.random() < 0.5:
            line += f" due:{_TODAY + timedelta(days=rng.randrange(-5, 40))}"
        open_tasks.append(f"({rng.choice('ABC')}) {line}" if rng.random() < 0.6 else line)
    (root / "todo.txt").write_text("\n".join(open_tasks) + "\n")
    (root / "done.txt").write_text("\n".join(done) + "\n")
    return root


SERVER = BenchmarkServer(
    "todo-txt-mcp",
    lambda: [pypi("todo-txt-mcp", "todo-txt-mcp==1.0.2", "mcp<2"), "{world}/todo.txt"],
    make_todo_list,
    {"HOME": "{world}"},
    use="development",
)
