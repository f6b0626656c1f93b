"""Words by what they are about."""

from __future__ import annotations

CATEGORIES = {
    "animal": "dog cow horse sheep goat tiger rabbit wolf camel",
    "color": "red blue green yellow purple orange brown pink gray",
    "vehicle": "car bus train truck bicycle tram taxi boat plane",
    "fruit": "apple pear banana grape cherry peach lemon mango plum",
    "clothes": "shirt hat coat shoe sock skirt glove scarf belt",
    "tool": "hammer saw drill axe shovel wrench knife rake chisel",
    "music": "piano violin drum flute guitar trumpet harp cello organ",
    "body": "arm leg nose knee neck mouth finger elbow shoulder",
    "weather": "rain snow wind storm fog cloud thunder frost hail",
    "drink": "water tea coffee milk juice beer wine lemonade cocoa",
    "furniture": "table chair bed desk shelf sofa bench lamp cupboard",
    "family": "mother father sister brother aunt uncle cousin grandmother nephew",
}
"""Words of a category. Its name is a clue for them."""
HELD_OUT = 3
"""How many words of a category, the last ones, are held out."""


def words(category: str, held_out: bool) -> list[str]:
    """The words of a category that are trained, or held out."""
    found = CATEGORIES[category].split()
    return found[-HELD_OUT:] if held_out else found[:-HELD_OUT]
