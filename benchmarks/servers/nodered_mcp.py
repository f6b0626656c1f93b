"""nodered-mcp on a directory with the flows of Node-RED: the lamps, pumps and blinds of a greenhouse."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from benchmarks.servers.server import BenchmarkServer, pypi

_TABS = ("Watering", "Climate", "Lighting", "Alarms")
_PLACES = ("north bed", "south bed", "nursery", "orchid room", "potting shed", "entrance")
_DEVICES = ("pump", "fan", "lamp", "blind", "heater", "valve")
_MEASURES = ("humidity", "temperature", "light", "water_level")


def make_flows(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the places, devices and limits.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"flows-{seed}"), where / "node-red"
    root.mkdir()
    nodes: list[dict[str, Any]] = []

    def add(kind: str, **rest: Any) -> dict[str, Any]:
        nodes.append({"id": f"{rng.getrandbits(64):016x}", "type": kind, **rest})
        return nodes[-1]

    broker = add("mqtt-broker", name="Greenhouse", broker="10.0.0.7", port="1883", keepalive="60")["id"]
    for label in _TABS:
        tab = add("tab", label=label, disabled=False, info="", env=[])["id"]
        for row, place in enumerate(rng.sample(_PLACES, 3)):
            y, measure, device = 120 + 160 * row, rng.choice(_MEASURES), rng.choice(_DEVICES)
            slug, limit = place.replace(" ", "-"), rng.randrange(15, 85)
            group = add("group", z=tab, name=f"{place.capitalize()} {device}", style={"label": True}, nodes=[])
            group |= {"x": 54, "y": y - 41, "w": 852, "h": 82}
            common: dict[str, Any] = {"z": tab, "g": group["id"], "y": y}
            served = {**common, "qos": "1", "broker": broker}
            wait = rng.randrange(1, 15)
            rule = {"t": rng.choice(("lt", "gt")), "v": str(limit), "vt": "num"}
            chain = [
                add("mqtt in", name=f"{place} {measure}", topic=f"{slug}/{measure}", x=160, **served),
                add("switch", name=f"limit {limit}", property="payload", rules=[rule], outputs=1, x=380, **common),
                add("delay", name=f"wait {wait} min", timeout=str(wait), timeoutUnits="minutes", x=580, **common),
                add("mqtt out", name=f"{place} {device}", topic=f"{slug}/{device}/set", x=800, **served),
            ]  # fmt: skip
            for one, following in zip(chain, [*chain[1:], None], strict=True):
                one["wires"] = [[following["id"]]] if following else []
            group["nodes"] = [one["id"] for one in chain]
    (root / "flows.json").write_text(json.dumps(nodes, indent=4))
    return root


SERVER = BenchmarkServer(
    "nodered-mcp",
    lambda: [pypi("nodered-mcp", "nodered-mcp==2.0.0"), "--flows-path", "{world}/flows.json"],
    make_flows,
    {"HOME": "{world}"},
    use="untouched",
)
