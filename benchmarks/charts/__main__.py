"""Draws the charts of the documentation from the tables of its pages.

    python -m benchmarks.charts

A figure that a page changes is changed in its chart by running this again. A test compares the two.
"""

from __future__ import annotations

from benchmarks.charts.chart import DOCS, Chart

STAGES = {"before": "before", "after the warm start": "after the warm start", "after GRPO": "after GRPO"}
CHARTS = [
    Chart(
        name="quickstart",
        page="benchmarks.md",
        after="## The quickstart",
        labels=("seed",),
        series={"before": "before training", "after (95 %)": "after ten steps of GRPO"},
        title="The quickstart, five seeds",
        about="success on 120 held-out questions, 95 % intervals, by seed; two CPU cores, two to three minutes",
        most=1.0,
    ),
    Chart(
        name="tasks",
        page="benchmarks/learning.md",
        after="Means over the seeds",
        labels=("task",),
        series=STAGES,
        title="Five tasks",
        about="success on held-out scenarios: mean over the seeds, lowest and highest",
        most=1.0,
    ),
    Chart(
        name="step",
        page="benchmarks/step.md",
        after="## The training step",
        labels=("case",),
        series={"padded rows, s": "padded rows", "packed, s": "packed"},
        title="A training step: packed, and in padded rows",
        about="seconds by case, median and range of three repeats; less is better",
    ),
    Chart(
        name="trl",
        page="benchmarks/step.md",
        after="Against TRL's own loss",
        labels=("case",),
        series={"TRL, s": "TRL", "packed, s": "packed"},
        title="Loss, backward pass and optimizer: packed, and TRL",
        about="seconds by case, one repeat; less is better",
    ),
    Chart(
        name="serving",
        page="benchmarks/serving.md",
        after="## LoRA on CPUs",
        labels=("requests",),
        series={"stock, s": "stock vLLM", "plugin, s": "with the plugin"},
        title="32 requests with LoRA on two CPU cores",
        about="seconds, the best of two repeats; less is better",
    ),
    Chart(
        name="soak",
        page="benchmarks/stress.md",
        after="## Soak",
        labels=("",),
        series={"five minutes": "five minutes"},
        rows="a second",
        title="The server under 256 rollouts at once",
        about="per second; clients, server, trainer and engine share two cores",
    ),
    Chart(
        name="chaos",
        page="benchmarks/chaos.md",
        after="## Over a small engine",
        labels=("trouble",),
        series={"back after": "back after"},
        title="How soon the server is back",
        about="seconds from the end of the trouble until a request is answered and a step has made its version",
    ),
    Chart(
        name="specialize",
        page="benchmarks/specialize.md",
        after="## `specialize` on MCP servers",
        labels=("server",),
        series={
            "before": "before",
            "prompted": "with demonstrations in the prompt",
            "after the warm start": "after the warm start",
        },
        title="specialize on six MCP servers",
        about="success on held-out tasks, 95 % intervals; two CPU cores, 20 minutes each",
        most=1.0,
    ),
    Chart(
        name="crashes",
        page="training/crashes.md",
        after="# What happens",
        labels=("killed", "when"),
        series={"longest": "longest"},
        title="The longest request while a process was killed and came back",
        about="seconds, by what was killed and when; in every row exactly one version was made, with the same bits",
    ),
    Chart(
        name="exactness",
        page="training/exactness.md",
        after="# How exact",
        labels=("architecture",),
        series={"max |Δlogp|": "log-probs, largest difference", "gradient, relative": "gradient, relative difference"},
        title="Distance from the stock model, one sequence at a time",
        about="worst of ten random trees, in fp32, logarithmic; fp32 itself rounds by 6e-8",
        log=True,
    ),
    Chart(
        name="memory",
        page="scaling/memory.md",
        after="The last two formulas",
        labels=("a token of SmolLM2-135M",),
        series={"MB": "MB"},
        title="Memory of a trained token: formula, measurement, plan",
        about="MB a token, SmolLM2-135M, all activations kept",
    ),
    Chart(
        name="fleet",
        page="operating/fleet.md",
        after="## What a call costs",
        labels=("a call at",),
        series={"median of 300, ms": "median"},
        title="What a call costs with several servers",
        about="milliseconds, median of 300 calls one after another, over a small engine, with fsync",
    ),
]


def write() -> None:
    """Writes every chart."""
    for chart in CHARTS:
        chart.path.parent.mkdir(parents=True, exist_ok=True)
        chart.path.write_text(chart.draw((DOCS / chart.page).read_text()))


if __name__ == "__main__":
    write()
    print(f"{len(CHARTS)} charts in {CHARTS[0].path.parent}")
