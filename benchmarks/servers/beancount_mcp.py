"""beancount-mcp on a directory with a ledger: half a year of a household, with links by which entries are found."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi

_SHOPS = {
    "Food": ("Corner Grocer", "Fish Market", "Bakery Quay"),
    "Transport": ("Railway", "Bicycle Shop"),
    "Home": ("Hardware Store", "Power Company", "Plumber"),
    "Leisure": ("Cinema", "Book Shop", "Rowing Club"),
}
_BEGIN = date(2026, 1, 1)


def make_ledger(where: Path, seed: int) -> Path:
    """Makes the directory of the ledger.

    Args:
        where: An empty directory.
        seed: Seed of the entries.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"ledger-{seed}"), where / "ledger"
    root.mkdir()
    accounts = ["Assets:Bank:Checking", "Assets:Bank:Savings", "Assets:Cash", "Income:Salary", "Equity:Opening"]
    accounts += [f"Expenses:{one}" for one in _SHOPS]
    lines = ['option "title" "Household"', 'option "operating_currency" "EUR"', ""]
    lines += [f"{_BEGIN} open {one}  EUR" for one in accounts]
    first = float(rng.randrange(1_000, 9_000))
    entries = [(_BEGIN, "Opening", "Balance", "Assets:Bank:Checking", first, "Equity:Opening")]
    for month in range(1, 7):
        salary = rng.randrange(2_800, 3_400)
        entries.append((date(2026, month, 25), "Employer", "Salary", "Assets:Bank:Checking", salary, "Income:Salary"))
    for at in range(32):
        kind = rng.choice(list(_SHOPS))
        day, payee = _BEGIN + timedelta(days=at * 5 + rng.randrange(5)), rng.choice(_SHOPS[kind])
        paid = rng.choice(("Assets:Bank:Checking", "Assets:Cash"))
        entries.append((day, payee, kind, f"Expenses:{kind}", rng.randrange(300, 18_000) / 100, paid))
    for at, (day, payee, text, to, amount, source) in enumerate(sorted(entries)):
        lines += ["", f'{day} * "{payee}" "{text}" ^e{at + 1}', f"  {to}  {amount:.2f} EUR", f"  {source}"]
    (root / "main.beancount").write_text("\n".join(lines) + "\n")
    return root


SERVER = BenchmarkServer(
    "beancount-mcp",
    lambda: [
        pypi("beancount-mcp", "beancount-mcp==0.1.1", "mcp<2"),
        "{world}/main.beancount",
        "--transport",
        "stdio",
    ],
    make_ledger,
    {"HOME": "{world}"},
)
