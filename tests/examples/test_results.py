"""docs/results.md and the pages of the examples are what the metrics files say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from art_examples import results
from art_examples.learning.curve import draw, figures, figures_in

ROOT = Path(__file__).parents[2]
DATA = ("corpus", "databases", "emails", "messages", "orders", "puzzles", "shop", "weather", "words", "worlds")
"""Files that make data."""
NOT_COUNTED = ("__init__.py", "__main__.py", *(f"{name}.py" for name in DATA))
"""The command of an example, and what makes its data."""
COMMAND = "run `python -m art_examples.results` and commit what it writes"


def test_the_page_is_made_of_the_metrics_files(tmp_path: Path) -> None:
    results.write(tmp_path, ROOT / "examples")
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    page = ROOT / "docs"
    there = [page / "results.md", *(page / results.PAGES).glob("*"), *(page / results.PICTURES).glob("*")]
    assert made == {path.relative_to(page): path.read_bytes() for path in there}, COMMAND
    listed = set(re.findall(r"results/\w+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {f"results/{path.name}" for path in made if path.parent == Path(results.PAGES)}


@pytest.mark.parametrize("name", [name for name, rows in results.collected(ROOT / "examples").items() if rows])
def test_the_picture_of_an_example_has_its_figures(name: str, tmp_path: Path) -> None:
    """Matplotlib may draw a line otherwise in another version: text and the figures of the metadata are compared."""
    rows = results.collected(ROOT / "examples")[name]
    draw(tmp_path / "curve.svg", rows)
    shown = [_shown(folder / "curve.svg") for folder in (tmp_path, ROOT / "examples" / name)]
    assert shown[0] == shown[1], f"run `python -m art_examples.{name}`, or draw the picture anew"


def _shown(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    return [line.strip() for line in path.read_text().splitlines() if "<text" in line], figures_in(path)


@pytest.mark.parametrize("changed", [{"rewards": [0.1, 0.3]}, {"after": {"success": 0.6, "interval": [0.4, 0.7]}}])
def test_a_picture_of_other_figures_is_found_out(changed: dict[str, Any], tmp_path: Path) -> None:
    measured = {"success": 0.5, "interval": [0.4, 0.6]}
    row = {"task": "a", "seed": 0, "before": measured, "prompted": None, "warm": None, "after": measured,
           "rewards": [0.1, 0.2]}  # fmt: skip
    draw(tmp_path / "a.svg", [row])
    draw(tmp_path / "b.svg", [{**row, **changed}])
    (text, shown), (other_text, other) = (_shown(tmp_path / name) for name in ("a.svg", "b.svg"))
    assert text == other_text
    assert shown == [figures(row)] != other


def test_a_run_is_a_line_with_what_was_measured_beside_it() -> None:
    measured = {"success": 0.5, "interval": [0.4, 0.6], "n": 96}
    row = {
        "task": "sql", "seed": 1, "steps": 8, "before": measured, "prompted": None, "warm": measured, "after": measured,
        "models": {"openai/some-model": {**measured, "success": 0.75}}, "seconds": 61.4, "rewards": [0.1],
        "date": "2026-11-23", "machine": "a processor, 2 cores", "note": "other work ran beside it",
    }  # fmt: skip
    text = results.page("sql_agent", [row], "# A\n\nB, see [C](../c.md).\n")
    assert "chose" not in text
    chosen = results.page("sql_agent", [{**row, "chosen": 4}, {**row, "seed": 2, "chosen": 1}], "# A\n\nB.\n")
    assert "the validation scenarios chose: version 4 (seed 1), version 1 (seed 2)." in chosen
    assert "# A\n\nB, see C.\n" in text
    assert "| task | seed | steps | before | prompted | openai/some-model | after warm start |" in text
    half = "0.500 (0.400 - 0.600)"
    assert f"| `sql` | 1 | 8 | {half} | - | 0.750 (0.400 - 0.600) | {half} | {half} | 96 | 61 |" in text
    assert "2026-11-23, a processor, 2 cores (other work ran beside it)." in text
    assert text.count("(../images/results/sql_agent.svg)") == 1
    other = results.page("codenames", [], "# A\n\nB.\n")
    assert "Folder: `examples/codenames/`. No whole run has been measured yet." in other
    assert ".svg" not in other
    rows = {"sql_agent": [row, {**row, "seed": 2}], "codenames": []}
    lines = results.overview(rows, {"sql_agent": "# SQL\n\nB.\n", "codenames": "# Names\n\nC.\n"}).splitlines()
    assert lines[-2:] == [
        "| [SQL](results/sql_agent.md) | `sql` | 2 | 0.500 | - | 0.500 | 0.500 | 61 |",
        "| [Names](results/codenames.md) | - | - | - | - | - | - | - |",
    ]


def test_the_mean_reward_and_its_parts_show_what_improves_where_success_does_not() -> None:
    measured = {"success": 0.0, "interval": [0.0, 0.1], "n": 96, "mean": 0.1, "parts": {"runs": 0.1, "rows": 0.0}}
    after = {**measured, "mean": 0.35, "parts": {"runs": 0.15, "rows": 0.2}}
    row = {
        "task": "sql", "seed": 0, "steps": 8, "before": measured, "prompted": None, "warm": None, "after": after,
        "models": {}, "rewards": [0.1], "seconds": 61.4, "date": "2026-11-23", "machine": "a processor", "note": "",
    }  # fmt: skip
    lines = results.page("sql_agent", [row], "# A\n\nB.\n").splitlines()
    at = lines.index("| `sql` | mean reward | runs | rows |")
    assert lines[at + 2 : at + 4] == ["| before | 0.100 | 0.100 | 0.000 |", "| after RL | 0.350 | 0.150 | 0.200 |"]


def test_what_a_run_costs_and_what_a_judge_taught_are_said() -> None:
    measured = {"success": 0.5, "interval": [0.4, 0.6], "n": 96}
    costs = {"turns": 3.0, "tokens": 512.4, "seconds": 1.25, "usd": 0.0}
    row = {
        "task": "email_search", "seed": 0, "steps": 8, "before": measured, "prompted": None, "warm": None,
        "after": measured, "models": {"openai/some-model": measured}, "seconds": 61.4, "date": "2026-11-23",
        "machine": "a processor", "note": "", "rewards": [0.1],
        "costs": {"before": costs, "openai/some-model": {**costs, "usd": None}},
        "judged": {"judge": "openai/a-judge", "agreement": 0.75, "pairs": 40, "after": measured, "usd": 0.1},
    }  # fmt: skip
    text = results.page("email_search", [row], "# A\n\nB.\n")
    assert "| a run | success | turns | tokens | seconds | USD |" in text
    assert "| before | 0.500 | 3.0 | 512 | 1.2 | 0.00000 |" in text
    assert "| openai/some-model | 0.500 | 3.0 | 512 | 1.2 | - |" in text
    row["costs"] = {"before": {**costs, "wrong": 0.125}, "openai/some-model": {**costs, "usd": None}}
    with_wrong = results.page("email_search", [row], "# A\n\nB.\n")
    assert "| a run | success | wrong answers | turns | tokens | seconds | USD |" in with_wrong
    assert "| before | 0.500 | 0.125 | 3.0 | 512 | 1.2 | 0.00000 |" in with_wrong
    assert "trained by openai/a-judge (RULER) in place of the reward: 0.500 (0.400 - 0.600)." in text
    assert "Of 40 pairs of runs with unequal rewards, the judge orders 75% as the reward does." in text


def test_every_example_has_a_page_of_one_screen_and_a_program() -> None:
    for folder in sorted(path.parent for path in (ROOT / "examples").glob("*/__main__.py")):
        text = (folder / "README.md").read_text()
        assert text.count("\n") <= 50, f"{folder.name}/README.md has {text.count(chr(10))} lines"
        assert f"make example-{folder.name}" in text
        assert ("(curve.svg)" in text) == (folder / "curve.svg").exists(), f"{folder.name}: show curve.svg in README.md"
        assert f"python -m art_examples.{folder.name}" in text
        files = [path for path in folder.glob("*.py") if path.name not in NOT_COUNTED]
        assert sum(path.read_text().count("\n") for path in files) <= 200, f"{folder.name} is longer than 200 lines"


def test_every_example_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT / "examples").parts for path in (ROOT / "examples").rglob("__init__.py")}
    assert {name for name in listed if name.startswith("art_examples")} == {
        ".".join(["art_examples", *parts]) for parts in folders
    }
