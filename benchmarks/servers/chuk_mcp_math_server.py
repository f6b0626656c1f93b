"""chuk-mcp-math-server over HTTP: twenty of its functions of arithmetic. It works on nothing."""

from __future__ import annotations

from benchmarks.servers.server import BenchmarkServer, pypi

_FUNCTIONS = (
    "add", "subtract", "multiply", "divide", "power", "sqrt", "modulo", "floor", "minimum", "maximum", "gcd", "lcm",
    "is_prime", "next_prime", "prime_factors", "divisors", "factorial", "fibonacci", "triangular_number",
    "is_perfect_square",
)  # fmt: skip

SERVER = BenchmarkServer(
    "chuk-mcp-math-server",
    lambda: [
        pypi("chuk-mcp-math-server", "chuk-mcp-math-server==0.3.3"),
        *("--transport", "http", "--host", "127.0.0.1", "--port", "{port}", "--functions", *_FUNCTIONS),
    ],
    endpoint="/mcp",
)
