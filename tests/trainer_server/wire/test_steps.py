"""Configuration of a step: which teachers can be named."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trainer_server.wire import Distillation, GRPOConfig


def test_a_text_names_the_teacher() -> None:
    config = GRPOConfig(distill="big@3")  # type: ignore[arg-type]
    assert config.distill == Distillation(teacher="big@3")
    assert GRPOConfig.model_validate_json(config.model_dump_json()) == config
    assert config.rewards_count
    assert not GRPOConfig(distill=Distillation(teacher="big", rewards=False)).rewards_count


@pytest.mark.parametrize(
    ("teacher", "version", "url"),
    [
        ("big@3", ("big", 3), None),
        ("big", ("big", None), None),
        ("big@latest", ("big", "latest"), None),
        ("base", None, None),
        ("http://gpu:8000/v1/", None, "http://gpu:8000"),
        ("https://gpu", None, "https://gpu"),
        (None, None, None),
    ],
)
def test_kinds_of_teachers(teacher: str | None, version: Any, url: str | None) -> None:
    distill = Distillation(teacher=teacher)
    assert (distill.version, distill.url) == (version, url)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"teacher": "big@best"}, "is no teacher: give a policy"),
        ({"teacher": "ftp://gpu"}, "is no teacher"),
        ({"teacher": "../big"}, "is no teacher"),
        ({"teacher": "big", "model": "x"}, "is the name of a model at an address"),
        ({"teacher": "big", "weight": 0}, "greater than 0"),
        ({"rewards": False}, "nothing would teach; name a teacher"),
        ({"teacher": "big", "key": "secret"}, "Extra inputs"),
    ],
)
def test_what_is_no_teacher_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GRPOConfig(distill=given)  # type: ignore[arg-type]
