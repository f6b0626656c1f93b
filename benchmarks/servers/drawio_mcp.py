"""drawio-mcp (npm) on a directory of diagrams: how orders, returns, bills and parcels pass through a shop."""

from __future__ import annotations

import random
import zlib
from base64 import b64encode
from html import escape
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx
from benchmarks.servers.words import PEOPLE

_DIAGRAMS = ("order", "return", "billing", "shipping")
_STEPS = ("Check stock", "Pack", "Weigh", "Print label", "Take payment", "Send invoice", "Call customer", "Archive")
_LABELS = ("yes", "no", "after 2 days", "by mail", "daily", "if paid")
_STYLES = ("whiteSpace=wrap;html=1;", "rounded=1;whiteSpace=wrap;html=1;", "ellipse;whiteSpace=wrap;html=1;")


def make_diagrams(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the steps and their order.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"diagrams-{seed}"), where / "diagrams"
    root.mkdir()
    for name in _DIAGRAMS:
        steps = rng.sample(_STEPS, 6)
        ids = [one.lower().replace(" ", "-") for one in steps]
        cells = ['<mxCell id="0"/>', '<mxCell id="1" parent="0"/>']
        for at, (ident, step) in enumerate(zip(ids, steps, strict=True)):
            corner = f'x="{40 + 180 * at}" y="{40 + rng.randrange(8) * 20}"'
            place = f'<mxGeometry {corner} width="120" height="60" as="geometry"/>'
            title = quoteattr(f"{step} ({rng.choice(PEOPLE)[0]})")
            attributes = f'id="{ident}" value={title} style="{rng.choice(_STYLES)}" vertex="1" parent="1"'
            cells.append(f"<mxCell {attributes}>{place}</mxCell>")
        for one, following in [*pairwise(ids), (ids[0], rng.choice(ids[2:]))]:
            ends = f'source="{one}" target="{following}" edge="1" parent="1"'
            geometry = '<mxGeometry relative="1" as="geometry"/>'
            cells.append(f'<mxCell id="{one}-2-{following}" value="{rng.choice(_LABELS)}" {ends}>{geometry}</mxCell>')
        model = f"<mxGraphModel><root>{''.join(cells)}</root></mxGraphModel>"
        (root / f"{name}.drawio.svg").write_text(_svg(model))
    return root


def _svg(model: str) -> str:
    """A picture with the model of a diagram, as draw.io keeps it: percent-encoded, deflated, in base 64."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflate.compress(quote(model, safe="!~*'()").encode()) + deflate.flush()
    content = f'<mxfile><diagram id="d" name="P">{b64encode(packed).decode()}</diagram></mxfile>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="300" content="{escape(content)}"></svg>'


SERVER = BenchmarkServer(
    "drawio-mcp",
    lambda: npx("drawio-mcp@1.6.0"),
    make_diagrams,
    {**npm_cache(), "HOME": "{world}"},
    use="untouched",
)
