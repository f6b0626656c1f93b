"""bibtex-file-mcp on a directory of bibliographies: what a student of rivers has read."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE

_FILES = {
    "thesis": ("Meanders and their age", "Floods of the lower valley", "Sand in motion", "Gravel bars from the air",
               "Ice jams", "Levees and their failures", "Deltas under pressure", "Banks held by willows"),
    "reading": ("Maps of forgotten channels", "A river and its millers", "Salmon ladders", "Ferries in winter",
                "Measuring discharge by dye", "Sediment of the harbour"),
}  # fmt: skip
_JOURNALS = ("Journal of Rivers", "Water and Land", "Sediment Letters", "Hydrology Today")


def make_bibliographies(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of authors, years and pages.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"bibliography-{seed}"), where / "references"
    root.mkdir()
    for name, titles in _FILES.items():
        entries = []
        for title in titles:
            (first, last), year = rng.choice(PEOPLE), rng.randrange(1978, 2025)
            is_book = rng.random() < 0.35
            fields = {"author": f"{last}, {first}", "title": title, "year": str(year)}
            if is_book:
                fields |= {"publisher": f"{rng.choice(CITIES)} University Press", "pages": str(rng.randrange(90, 480))}
            else:
                begin = rng.randrange(1, 400)
                pages = f"{begin}--{begin + rng.randrange(4, 30)}"
                fields |= {"journal": rng.choice(_JOURNALS), "volume": str(rng.randrange(3, 60)), "pages": pages}
            key = f"{last.lower()}{year}{title.split()[0].lower()}"
            body = ",\n".join(f"  {field} = {{{value}}}" for field, value in fields.items())
            entries.append(f"@{'book' if is_book else 'article'}{{{key},\n{body}\n}}\n")
        (root / f"{name}.bib").write_text("\n".join(entries))
    return root


SERVER = BenchmarkServer(
    "bibtex-file-mcp",
    lambda: [pypi("bibtex-file-mcp", "bibtex-file-mcp==1.1.0", "mcp<2")],
    make_bibliographies,
    {"HOME": "{world}"},
    use="seen",
)
