"""Texts of users and models on pages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_server.dashboard.render import _templates, address, label, number, render_text, when


@given(st.text(alphabet=st.characters(), max_size=200))
def test_no_text_becomes_markup(text: str) -> None:
    """Whatever it is: the only elements are those that name odd characters."""
    html = str(render_text(text))
    assert_no_markup(html)
    short = re.fullmatch(r'<span title="([^"]*)">(.*)…</span>', str(label(text, 3)), re.DOTALL)
    for part in short.groups() if short else [str(label(text, 3))]:
        assert_no_markup(part)


def assert_no_markup(html: str) -> None:
    without = re.sub(r'<span class="odd" title="[^"<>]*">U\+[0-9A-F]{4,6}</span>', "", html)
    assert "<" not in without
    assert ">" not in without
    assert '"' not in without
    html.encode()


def test_what_cannot_be_seen_is_named() -> None:
    html = render_text("a\u202eb\x1b[31m\ud800")
    assert "U+202E" in html
    assert "U+001B" in html
    assert "U+D800" in html
    assert "right-to-left override" in html


def test_a_long_text_is_cut_and_can_be_opened() -> None:
    html = render_text("x" * 25_000, 1000)
    assert "24,000 more characters" in html
    assert "15,000 more characters: the API has them" in html
    assert len(html) < 11_000


def test_a_long_label_is_cut_and_its_title_has_it() -> None:
    assert label("<b>", 3) == "&lt;b&gt;"
    assert label("a\u202e<b>", 3) == (
        '<span title="aU+202E&lt;b&gt;">a<span class="odd" title="right-to-left override">U+202E</span>…</span>'
    )


def test_values_for_people() -> None:
    assert [number(one) for one in (0.5, 1, 12345, 1e-9, True, "x", None, float("inf"))] == [
        "0.500",
        "1",
        "12,345",
        "1.00e-09",
        "",
        "",
        "",
        "inf",
    ]
    assert 'datetime="1970-01-01T00:00:00' in when(0.0)
    assert when(1e20) == "1e+20"
    assert address("/x", a="&<", b=None, c="") == "/x?a=%26%3C"
    assert render_text({"a": "<b>"}) == "{\n  &#34;a&#34;: &#34;&lt;b&gt;&#34;\n}"


@pytest.mark.parametrize(
    ("reward", "colour"), [(1.0, " good"), (2, " good"), (0.1, ""), (0.999, ""), (0.0, " poor"), (-1, " poor")]
)
def test_only_a_success_is_green_and_only_a_reward_of_nothing_is_red(reward: float, colour: str) -> None:
    html = _templates.get_template("macros.html").module.reward(reward)
    assert html == f'<span class="reward{colour}">{number(reward)}</span>'
