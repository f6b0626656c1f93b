"""Writes docs/results.md, a page for each example, and the pictures, from the metrics files of the examples.

    python -m art_examples.results

It needs a clone of the repository. No figure of the pages is typed.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

from art_examples.learning.curve import STAGES, measured_at
from art_examples.learning.runs import Row, newest, success

EXAMPLES = Path(__file__).resolve().parent
DOCS = EXAMPLES.parent / "docs"
PAGES = "results"
PICTURES = "images/results"
COSTS = {"wrong": ".3f", "turns": ".1f", "tokens": ".0f", "seconds": ".1f", "usd": ".5f"}
"""What a run takes, and how it is written."""
COST_HEADINGS = {"wrong": "wrong answers", "usd": "USD"}
HEAD = """# Results of the examples

Each example is an agent in a folder of `examples/`, most of them LangGraph apps. `make example-NAME` trains it for two
steps, which takes half a minute to five on two cores; `make examples` (`python -m art_examples`) trains all of them on
one server, and `remote_gpu` on its own, in 24 minutes on two idle cores of an AMD EPYC with bf16 (2026-11-29, one run;
where mcp-server-time and mcp-server-git are installed, these are trained too).
`notebook.ipynb` in its folder does the same, a stage in each cell. `python -m art_examples.NAME` makes a whole run and
appends it to `results.jsonl` in the folder, or a short one (`--steps`, `--held-out`, `--demonstrations`) to
`runs/examples/NAME`. `python -m art_examples.results` makes these pages from the whole runs of each task's last recipe.

`python -m art_examples.NAME --model MODEL --minutes 20` trains another base model, for 20 minutes, and writes to
`runs/examples/NAME`. The recipe's warm start is left out where the model solves a twentieth of the task by itself, or
with demonstrations in its prompts, which then stay there. On GPUs a step has as many runs as the engines compute at
once. `--connect URL` takes a running server and its model.

All figures are success rates on held-out scenarios at temperature 0, as means over the seeds; the page of an example
has each seed, with 95 % intervals. "before" is the untrained policy, "prompted" the same with demonstrations in its
prompts, "after RL" the last version, or, where the page says so, the one that validation scenarios chose. RL adds what
"after RL" has more than "after warm start", or than "before" without one; [where that is nothing, and
why](benchmarks/examples.md). The policy is SmolLM2-135M-Instruct, unless the page says otherwise. "seconds" has all
measurements and the training, without the start of the server.
"""
HEADINGS = ("example", "task", "seeds", "before", "prompted", "after warm start", "after RL", "seconds")
NOT_YET = "No whole run has been measured yet."
WARM = "Version 1 is that of the warm start."


def overview(rows: dict[str, list[Row]], texts: dict[str, str]) -> str:
    """The text of docs/results.md: a line for each task.

    Args:
        rows: Rows of the metrics file, by example.
        texts: README.md of each example.
    """
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for name, found in rows.items():
        link = f"[{_title(texts[name])}]({PAGES}/{name}.md)"
        tasks = dict.fromkeys(row["task"] for row in found)
        lines += [_task_line(link, task, [row for row in found if row["task"] == task]) for task in tasks]
        lines += [] if found else [f"| {link} | " + " | ".join("-" * (len(HEADINGS) - 1)) + " |"]
    return "\n".join([HEAD, *lines, ""])


def _task_line(link: str, task: str, rows: list[Row]) -> str:
    stages = [[measured_at(row, stage) for row in rows] for stage in STAGES]
    rates = [_mean([measured and measured["success"] for measured in stage], ".3f") for stage in stages]
    seconds = _mean([row["seconds"] for row in rows], ".0f")
    return "| " + " | ".join([link, f"`{task}`", str(len(rows)), *rates, seconds]) + " |"


def page(name: str, rows: list[Row], text: str) -> str:
    """The text of the page of an example: title and first paragraph of its README, the runs, and the picture."""
    about = re.match(r"# .+\n\n((?:.+\n)+)", text)[1]  # type: ignore[index]
    about = re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]*\)", r"\1", about)  # links that lead elsewhere from here
    head = f"# {_title(text)}\n\n{about}\nFolder: `examples/{name}/`.{'' if rows else f' {NOT_YET}'}\n"
    if not rows:
        return head
    models = list(dict.fromkeys(model for row in rows for model in row["models"]))
    heads = ["task", "seed", "steps", "before", "prompted", *models, "after warm start", "after RL", "n", "seconds"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", *(_line(row, models) for row in rows)]
    explained = 'Success rates with 95 % intervals. "n" is the number of held-out scenarios.'
    facts = dict.fromkeys(f"{row['date']}, {row['machine']}{_note(row)}." for row in rows)
    more = [*_chosen(rows), *_rewards(rows), *_costs(rows), *_judged(rows)]
    picture = f"![{_title(text)}: success at each stage, and mean reward by step](../{PICTURES}/{name}.svg)"
    return "\n".join([head, *lines, "", explained, *facts, *more, f"\n{picture}\n"])


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _line(row: Row, models: list[str]) -> str:
    measured = [row["before"], row["prompted"], *(row["models"].get(name) for name in models)]
    rates = map(success, [*measured, row["warm"], measured_at(row, "after")])
    cells = [f"`{row['task']}`", row["seed"], row["steps"], *rates, row["after"]["n"], f"{row['seconds']:.0f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def _chosen(rows: list[Row]) -> list[str]:
    """Which version validation scenarios chose in each run, for the examples that have such scenarios."""
    chosen = [f"version {row['chosen']} (seed {row['seed']})" for row in rows if "chosen" in row]
    said = f'"after RL" is the version that the validation scenarios chose: {", ".join(chosen)}.'
    return [said, WARM] if chosen else []


def _rewards(rows: list[Row]) -> list[str]:
    """A table for each task: the mean reward and its parts, which may improve where success does not."""
    lines = list[str]()
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        by_stage = {
            stage: [one for row in mine if (one := measured_at(row, stage)) and "mean" in one] for stage in STAGES
        }
        measured = {stage: found for stage, found in by_stage.items() if found}
        names = list(dict.fromkeys(name for found in measured.values() for one in found for name in one["parts"]))
        if not measured:
            continue
        heads = [f"`{task}`", "mean reward", *names]
        lines += ["", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for stage, found in measured.items():
            parts = [[one["parts"].get(name) for one in found] for name in names]
            cells = [_mean([one["mean"] for one in found], ".3f"), *(_mean(part, ".3f") for part in parts)]
            lines.append("| " + " | ".join([STAGES[stage].replace("\n", " "), *cells]) + " |")
    explained = "The mean reward of the held-out runs and its parts, which are summed, as means over the seeds:"
    return ["", explained, *lines] if lines else []


def _costs(rows: list[Row]) -> list[str]:
    """A table of what a run takes, for the examples that record it. Each line is the mean over all seeds."""
    stages = list(dict.fromkeys(stage for row in rows for stage in row.get("costs", ())))
    if not stages:
        return []
    names = [name for name in COSTS if any(name in cost for row in rows for cost in row.get("costs", {}).values())]
    heads = ["a run", "success", *(COST_HEADINGS.get(name, name) for name in names)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for stage in stages:
        costs = [row["costs"][stage] for row in rows if stage in row.get("costs", ())]
        rates = [found["success"] for row in rows if (found := row["models"].get(stage, row.get(stage)))]
        cells = [_mean([cost.get(name) for cost in costs], COSTS[name]) for name in names]
        name = STAGES.get(stage, stage).replace("\n", " ")
        lines.append("| " + " | ".join([name, _mean(rates, ".3f"), *cells]) + " |")
    return ["", *lines]


def _judged(rows: list[Row]) -> list[str]:
    """A line for each run in which a copy of the policy learned by a judge."""
    lines = []
    for row in rows:
        if judged := row.get("judged"):
            share = "-" if judged["agreement"] is None else f"{judged['agreement']:.0%}"
            lines.append(
                f"\n`{row['task']}`, seed {row['seed']}, trained by {judged['judge']} (RULER) in place of the reward: "
                f"{success(judged['after'])}. Of {judged['pairs']} pairs of runs with unequal rewards, the judge "
                f"orders {share} as the reward does."
            )
    return lines


def _mean(values: list[float | None], form: str) -> str:
    """The mean; "-" where a value is not known, or there is none."""
    known = [value for value in values if value is not None]
    return format(fmean(known), form) if known and len(known) == len(values) else "-"


def _note(row: Row) -> str:
    return f" ({row['note']})" if row["note"] else ""


def collected(examples: Path = EXAMPLES) -> dict[str, list[Row]]:
    """The newest row of each task and seed (`newest`), by example; none for an example that has no metrics file."""
    folders = sorted(path.parent for path in examples.glob("*/README.md"))
    return {folder.name: list(newest(folder / "results.jsonl").values()) for folder in folders}


def write(docs: Path = DOCS, examples: Path = EXAMPLES) -> None:
    """Writes the pages and copies the pictures.

    Args:
        docs: The folder of the documentation.
        examples: The folder of the examples.
    """
    rows = collected(examples)
    texts = {name: (examples / name / "README.md").read_text() for name in rows}
    (docs / "results.md").write_text(overview(rows, texts))
    for folder in (PAGES, PICTURES):
        (docs / folder).mkdir(parents=True, exist_ok=True)
    for name, found in rows.items():
        (docs / PAGES / f"{name}.md").write_text(page(name, found, texts[name]))
        if found:
            (docs / PICTURES / f"{name}.svg").write_bytes((examples / name / "curve.svg").read_bytes())


if __name__ == "__main__":
    write()
    print(DOCS / "results.md")
