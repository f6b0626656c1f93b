"""An adapter of which vLLM would apply nothing is refused; see tests/full for the real vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engines.plugins import engine_plugin


class Manager:
    """A model of two layers, which vLLM finds weights for by their names."""

    def __init__(self) -> None:
        self.model = SimpleNamespace()
        self.modules = {"language_model.model.layers.0.q_proj": 0, "language_model.model.layers.1.q_proj": 0}

    def _get_lora_layer_weights(self, adapter: Any, name: str) -> Any:
        return adapter.loras.get(name)


@pytest.mark.parametrize("names", [[], ["language_model.model.layers.1.q_proj"]])
def test_an_adapter_whose_names_are_known_passes(names: list[str]) -> None:
    engine_plugin("art_applied").check_applied(Manager(), SimpleNamespace(loras=dict.fromkeys(names, object())))


def test_an_adapter_for_other_modules_is_refused_with_both_names() -> None:
    adapter = SimpleNamespace(loras={"model.layers.0.q_proj": object()})
    with pytest.raises(ValueError, match=r"named like model\.layers\.0.*take adapters like language_model\.model"):
        engine_plugin("art_applied").check_applied(Manager(), adapter)
