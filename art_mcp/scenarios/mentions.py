"""Whether a text mentions a value."""

from __future__ import annotations

import re
from decimal import Decimal


def mentions(text: str, fact: str) -> bool:
    """Whether a text contains a fact as whole words. Case, spaces, Markdown and thousands separators are ignored.

    Args:
        text: The text.
        fact: The value.
    """
    plain, wanted = _plain(text), _plain(fact)
    if re.fullmatch(r"-?\d+(\.\d+)?", wanted):
        value = Decimal(wanted)  # a float would take long ids for one another
        return any(Decimal(number) == value for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", plain))
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", plain) is not None


def _plain(text: str) -> str:
    """The text in lower case without Markdown, thousands separators and repeated spaces."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub(r"[*_`]", "", text))
    return " ".join(text.split()).casefold()
