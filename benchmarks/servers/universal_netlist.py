"""@intelligentelectron/universal-netlist (npm) on a directory of circuit boards: netlists of three KiCad projects."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, npm_cache, npx

_BOARDS = ("weather-station", "pump-controller", "door-bell")
_SENSORS = ("BME280", "SHT31", "TSL2591", "LIS3DH", "MCP9808", "VEML7700")
_REGULATORS = ("AP2112K-3.3", "MCP1700-3302E", "TLV75533")
_COLOURS = ("red", "green", "amber", "blue")


def make_boards(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the parts and their values.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"boards-{seed}"), where / "boards"
    for board in _BOARDS:
        (root / board).mkdir(parents=True)
        (root / board / f"{board}.kicad_pro").write_text(json.dumps({"meta": {"filename": f"{board}.kicad_pro"}}))
        (root / board / f"{board}.net").write_text(_netlist(board, rng))
    return root


def _netlist(board: str, rng: random.Random) -> str:
    """The export of KiCad: a regulator, a microcontroller, sensors on one bus, lamps, and what they need."""
    parts: dict[str, tuple[str, str, str]] = {}
    nets: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
    counts: defaultdict[str, int] = defaultdict(int)

    def add(prefix: str, value: str, description: str, number: str, pins: dict[str, str]) -> None:
        """Adds a part. Its pins are numbered in order, by name of the pin, with the net that each is on."""
        counts[prefix] += 1
        ref = f"{prefix}{counts[prefix]}"
        parts[ref] = (value, description, number)
        for at, (pin, net) in enumerate(pins.items(), 1):
            nets[net].append((ref, str(at), pin))

    regulator, lamps = rng.choice(_REGULATORS), rng.sample(_COLOURS, rng.randrange(2, 5))
    add("J", "Conn_01x02", "Power connector", "B2B-XH-A", {"Pin_1": "+5V", "Pin_2": "GND"})
    add("U", regulator, "Voltage regulator 3.3 V", regulator, {"VIN": "+5V", "GND": "GND", "VOUT": "+3V3"})
    controller = {"VDD": "+3V3", "GND": "GND", "PB6": "/SCL", "PB7": "/SDA", "NRST": "/RESET"}
    outputs = {f"PA{at}": f"/LED_{one.upper()}" for at, one in enumerate(lamps)}
    add("U", "STM32G030", "Microcontroller", "STM32G030K6T6", controller | outputs)
    for sensor in rng.sample(_SENSORS, rng.randrange(1, 4)):
        pins = {"VDD": "+3V3", "GND": "GND", "SCL": "/SCL", "SDA": "/SDA"}
        add("U", sensor, f"Sensor {sensor}", sensor, pins)
    for net in ("/SCL", "/SDA", "/RESET"):
        value = rng.choice(("2.2k", "4.7k", "10k"))
        add("R", value, f"Resistor {value}", f"RC0603FR-07{value.upper()}L", {"1": "+3V3", "2": net})
    for colour in lamps:
        value, middle = rng.choice(("330", "470", "1k")), f"Net-(D{counts['D'] + 1}-A)"
        add(
            "R",
            value,
            f"Resistor {value}",
            f"RC0603FR-07{value.upper()}L",
            {"1": f"/LED_{colour.upper()}", "2": middle},
        )
        add("D", f"LED {colour}", f"Lamp, {colour}", f"LTST-C190-{colour.upper()}", {"K": "GND", "A": middle})
    for rail in ("+5V", *["+3V3"] * rng.randrange(2, 5)):
        value = rng.choice(("100n", "1u", "10u"))
        add("C", value, f"Capacitor {value}", f"CL10-{value.upper()}", {"1": rail, "2": "GND"})
    lines = [f'(export (version "E") (design (source "{board}.kicad_sch") (tool "Eeschema 9.0.2"))', "(components"]
    for ref, (value, description, number) in parts.items():
        field = f'(fields (field (name "MPN") "{number}"))'
        lines.append(f'(comp (ref "{ref}") (value "{value}") (description "{description}") {field})')
    lines += [")", "(nets"]
    for code, (net, nodes) in enumerate(nets.items(), 1):
        ends = " ".join(f'(node (ref "{ref}") (pin "{pin}") (pinfunction "{name}"))' for ref, pin, name in nodes)
        lines.append(f'(net (code "{code}") (name "{net}") {ends})')
    return "\n".join([*lines, "))", ""])


SERVER = BenchmarkServer(
    "universal-netlist",
    lambda: npx("@intelligentelectron/universal-netlist@1.11.1"),
    make_boards,
    {**npm_cache(), "HOME": "{world}", "UNIVERSAL_NETLIST_TELEMETRY_PATH": "{world}/.usage"},
    use="untouched",
)
