"""The picture that README begins with shows a run whose figures are kept, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from art_examples.quickstart import picture

from trainer_server.wire import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
KEPT: dict[str, Any] = json.loads(picture.KEPT.read_text())


def texts() -> set[str]:
    drawn = ElementTree.fromstring(picture.PICTURE.read_text())
    return {element.text or "" for element in drawn.iter(f"{SVG}text")}


def test_the_picture_is_what_the_kept_run_gives() -> None:
    assert picture.PICTURE.read_text() == picture.draw(KEPT), "run `python -m art_examples.quickstart.picture`"


def test_the_picture_has_the_figures_and_the_calls_of_the_run() -> None:
    shown = texts()
    assert {f"{KEPT[when]['success']:.3f}" for when in ("before", "after")} <= shown
    assert {f"{run['call']} → {run['result']}" for run in KEPT["runs"]} <= shown
    assert {run["answer"] for run in KEPT["runs"]} | {KEPT["question"]} <= shown


def test_the_run_learned_and_its_question_was_answered_wrong_and_then_right() -> None:
    assert [row["step"] for row in KEPT["steps"]] == list(range(1, 11))
    assert KEPT["before"]["interval"][1] < KEPT["after"]["interval"][0]
    wrong, right = KEPT["runs"]
    assert KEPT["wanted"] not in wrong["answer"]
    assert KEPT["wanted"] in right["answer"]


def test_a_run_that_has_not_ended_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        picture.kept(tmp_path)
