"""mcp-pptx-tools on a directory with presentations of PowerPoint and pictures: the lectures of a planetarium."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer
from testbed.environments import environment

_TITLES = ("Moons of Jupiter", "Spring sky", "Meteor showers", "Life of a star", "Eclipses", "The Milky Way")
_POINTS = ("bring a red lamp", "best seen at dawn", "four hours long", "a telescope helps", "once in a decade", "free")
_WRITE = """
import json, sys, time
from PIL import Image
from pptx import Presentation
time.localtime = lambda *_: time.gmtime(1_800_000_000)  # of the entries of the archives: the seed makes their bytes
for name, slides in json.load(sys.stdin).items():
    made = Presentation()
    for title, lines in slides:
        slide = made.slides.add_slide(made.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, "\\n".join(lines)
    made.save(name + ".pptx")
    Image.new("RGB", (60, 40), (len(slides) * 20, 40, 90)).save(name + ".png")
"""
_RUN = "import asyncio; from powerpoint_mcp.server import main; asyncio.run(main())"  # its own program awaits nothing


def _python() -> str:
    return str(environment("powerpoint-mcp", "mcp-pptx-tools==1.0.0", "mcp<2") / "python")


def make_lectures(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the slides.
    """
    rng, root = random.Random(f"planetarium-{seed}"), where / "lectures"
    root.mkdir()
    lectures = {}
    for name in rng.sample(_TITLES, 5):
        slides = [(title, rng.sample(_POINTS, 3)) for title in rng.sample(_TITLES, rng.randrange(1, 6))]
        lectures[name.lower().replace(" ", "-")] = [(name, ["An evening for everybody"]), *slides]
    subprocess.run([_python(), "-c", _WRITE], cwd=root, input=json.dumps(lectures), text=True, check=True)
    return root


SERVER = BenchmarkServer("pptx-tools", lambda: [_python(), "-c", _RUN], make_lectures, {"HOME": "{world}"}, use="seen")
