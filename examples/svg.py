"""A picture as SVG, on a card that is readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH = 720
"""Of every card, in pixels."""
COLORS = ("before", "after", "third", "fourth")
"""Classes of series, in their order."""
STYLE = """
.card{fill:#fff}.ink{fill:#1f2933}.dim{fill:#52606d}.grid{stroke:#e4e7eb}.mark{stroke:#1f2933;stroke-width:1.5}
.before{fill:#9aa5b1;stroke:#9aa5b1}.after{fill:#0f766e;stroke:#0f766e}.third{fill:#b45309;stroke:#b45309}
.fourth{fill:#4f46e5;stroke:#4f46e5}.line{fill:none;stroke-width:2}.box{fill:#f5f7fa}
@media (prefers-color-scheme:dark){.card{fill:#1f2430}.ink{fill:#e4e7eb}.dim{fill:#a9b4c2}.grid{stroke:#3b4454}
.mark{stroke:#e4e7eb}.before{fill:#7b8794;stroke:#7b8794}.after{fill:#2dd4bf;stroke:#2dd4bf}
.third{fill:#f59e0b;stroke:#f59e0b}.fourth{fill:#a5b4fc;stroke:#a5b4fc}.line{fill:none}.box{fill:#2a3140}}
"""


class Card:
    """Collects shapes, and writes them as an SVG. The same shapes give the same bytes.

    Args:
        title: Heading of the picture.
        about: What the picture shows, in a line below the heading.
        description: The figures in words, for those who do not see the picture.
    """

    def __init__(self, title: str, about: str, description: str) -> None:
        self._shapes: list[str] = []
        self._names = (title, description)
        self.text(20, 28, title, size=16, bold=True)
        self.text(20, 48, about, color="dim")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        color: str = "ink",
        anchor: str = "start",
        size: int = 13,
        bold: bool = False,
    ) -> None:
        """A line of text. anchor: "start", "middle" or "end", which is where x is."""
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" class="{color}" text-anchor="{anchor}" font-size="{size}"{weight}>'
            f"{escape(text)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, color: str, *, round_by: int = 0) -> None:
        """A filled rectangle."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="{round_by}" class="{color}" '
            'stroke="none" style="stroke:none"/>'
        )

    def dot(self, x: float, y: float, color: str) -> None:
        """A point of a series."""
        self._shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{color}"/>')

    def line(self, points: Sequence[tuple[float, float]], color: str) -> None:
        """A line through points. color: the class of a series, "grid" or "mark"."""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        kind = color if color in ("grid", "mark") else f"{color} line"
        self._shapes.append(f'<path d="M{path}" class="{kind}" style="fill:none"/>')

    def svg(self, height: float) -> str:
        """The whole picture. height: in pixels."""
        title, description = map(escape, self._names)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img" '
            f'aria-labelledby="title about" font-family="system-ui, sans-serif">\n'
            f'<title id="title">{title}</title>\n<desc id="about">{description}</desc>\n<style>{STYLE}</style>'
        )
        card = f'<rect width="{WIDTH}" height="{height:g}" rx="8" class="card"/>'
        return "\n".join([head, card, *self._shapes, "</svg>\n"])
