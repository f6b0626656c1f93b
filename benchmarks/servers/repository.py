"""mcp-server-git on a repository: some authors, commits over a few weeks, branches, tags, changes not staged."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import PEOPLE, TOPICS, VERBS

COMMITS, BRANCHES, AUTHORS = 14, 5, 5
_BEGIN = 1_780_000_000
"""Time of the first commit, as Unix time: the same in every world of a seed."""


def make_repository(where: Path, seed: int) -> Path:
    """Makes the repository.

    Args:
        where: An empty directory.
        seed: Seed of names, contents and times. The same seed gives the same commits.

    Returns:
        The directory of the repository.
    """
    rng, at = random.Random(f"repository-{seed}"), where / "project"
    authors = rng.sample(PEOPLE, AUTHORS)
    topics = rng.sample(TOPICS, COMMITS)
    moment = _BEGIN

    def git(*words: str, author: tuple[str, str] = authors[0]) -> None:
        name, mail = " ".join(author), f"{author[0].lower()}@example.com"
        dates = {"GIT_AUTHOR_DATE": f"{moment} +0000", "GIT_COMMITTER_DATE": f"{moment} +0000"}
        people = {f"GIT_{who}_NAME": name for who in ("AUTHOR", "COMMITTER")}
        people |= {f"GIT_{who}_EMAIL": mail for who in ("AUTHOR", "COMMITTER")}
        none = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", "-C", str(at), *words], check=True, env={**os.environ, **none, **dates, **people})

    at.mkdir()
    git("init", "-q", "-b", "main")
    git("config", "user.name", "A Person")
    git("config", "user.email", "person@example.com")
    for number, topic in enumerate(topics):
        moment += rng.randrange(3_600, 200_000)
        path = at / "src" / f"{topic}.py" if number % 3 else at / "docs" / f"{topic}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            "\n".join(f"{topic}_{line} = {rng.randrange(100)}" for line in range(rng.randrange(3, 9))) + "\n"
        )
        git("add", ".")
        git("commit", "-q", "-m", f"{rng.choice(VERBS)} the {topic}", author=rng.choice(authors))
        if number in (4, 9):
            git("tag", f"v0.{number}")
    for topic in rng.sample(topics, BRANCHES):
        moment += rng.randrange(3_600, 90_000)
        git("branch", f"feature/{topic}", f"HEAD~{rng.randrange(4)}")
    last = sorted((at / "src").iterdir())[0]
    last.write_text(last.read_text() + "changed = True\n")
    (at / "notes.txt").write_text(f"To do: the {rng.choice(topics)}\n")
    return at


SERVER = BenchmarkServer(
    "git",
    lambda: [pypi("mcp-server-git", "mcp-server-git"), "--repository", "{world}"],
    make_repository,
    use="development",
)
