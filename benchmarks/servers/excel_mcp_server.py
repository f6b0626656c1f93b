"""excel-mcp-server on a directory with two workbooks: the orders of a shop, and a household's spending."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

from benchmarks.servers.server import BenchmarkServer, pypi
from benchmarks.servers.words import CITIES, PEOPLE, PRODUCTS
from benchmarks.servers.workbook import Cell, write_workbook

_STATES = ("open", "paid", "shipped", "returned")
_SPENDING = {
    "Groceries": (18, 140),
    "Rent": (900, 1_200),
    "Transport": (4, 60),
    "Health": (10, 120),
    "Leisure": (8, 90),
    "Insurance": (30, 75),
}


def make_workbooks(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the rows.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"workbooks-{seed}"), where / "office"
    root.mkdir()
    customers = [" ".join(one) for one in rng.sample(PEOPLE, 10)]
    prices = {one: rng.randrange(200, 9_000) / 100 for one in rng.sample(PRODUCTS, 12)}
    begin = date(2026, 1, 5)
    orders: list[list[Cell]] = [["Order", "Date", "Customer", "Product", "Quantity", "Price", "State"]]
    for at in range(30):
        product = rng.choice(list(prices))
        day, customer = begin + timedelta(days=at * 3 + rng.randrange(3)), rng.choice(customers)
        row = [day, customer, product, rng.randrange(1, 9), prices[product], rng.choice(_STATES)]
        orders.append([f"A-{1_001 + at}", *row])
    stock: list[list[Cell]] = [["Product", "Price", "Stock", "Shelf"]]
    stock += [
        [one, price, rng.randrange(60), f"{rng.choice('ABCD')}{rng.randrange(1, 9)}"] for one, price in prices.items()
    ]
    people: list[list[Cell]] = [["Customer", "City", "Since"]]
    people += [[one, rng.choice(CITIES), rng.randrange(2012, 2026)] for one in customers]
    write_workbook(root / "shop.xlsx", {"Orders": orders, "Stock": stock, "Customers": people})
    spending: list[list[Cell]] = [["Date", "Category", "Amount"]]
    for at in range(24):
        category = rng.choice(list(_SPENDING))
        low, high = _SPENDING[category]
        spending.append([begin + timedelta(days=at * 4), category, rng.randrange(low * 100, high * 100) / 100])
    budget: list[list[Cell]] = [["Category", "Budget"], *([one, high * 4] for one, (_, high) in _SPENDING.items())]
    write_workbook(root / "household.xlsx", {"Spending": spending, "Budget": budget})
    return root


SERVER = BenchmarkServer(
    "excel-mcp-server",
    lambda: [pypi("excel-mcp-server", "excel-mcp-server==2.2.2"), "stdio"],
    make_workbooks,
    {"HOME": "{world}"},
    use="development",
)
