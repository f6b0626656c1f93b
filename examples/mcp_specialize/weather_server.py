"""An MCP server over stdio with forecasts and alerts of a recorded week: `python weather_server.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

sys.path.insert(0, str(Path(__file__).parent))  # run as a script, from anywhere

import weather

FORECASTS, ALERTS = weather.recorded_forecasts(), weather.recorded_alerts()
server = MCPServer("weather", version="1.0.0", log_level="WARNING")


@server.tool()
def list_stations(region: weather.Region) -> list[str]:
    """Weather stations of a region."""
    return weather.REGIONS[region]


@server.tool()
def get_forecast(station: str, day: weather.Day = "today") -> weather.Forecast:
    """Forecast for a station: temperatures in degrees Celsius, sky, wind in kilometres per hour."""
    if station not in FORECASTS:
        raise ToolError(f"there is no station {station!r}")
    return FORECASTS[station][day]


@server.tool()
def get_alerts(region: weather.Region) -> list[weather.Alert]:
    """Weather alerts for a region."""
    return ALERTS[region]


if __name__ == "__main__":
    server.run()
