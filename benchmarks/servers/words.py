"""Words of which worlds are made."""

from __future__ import annotations

PEOPLE = (
    ("Ada", "Lovelace"), ("Alan", "Turing"), ("Grace", "Hopper"), ("Edsger", "Dijkstra"), ("Barbara", "Liskov"),
    ("Donald", "Knuth"), ("Margaret", "Hamilton"), ("Niklaus", "Wirth"), ("Frances", "Allen"), ("Tony", "Hoare"),
    ("Radia", "Perlman"), ("John", "Backus"), ("Karen", "Jones"), ("Ken", "Thompson"), ("Adele", "Goldberg"),
)  # fmt: skip
TOPICS = (
    "login", "search", "billing", "export", "import", "cache", "upload", "report", "calendar", "invoice", "profile",
    "settings", "backup", "metrics", "archive", "catalog", "shipping", "payment", "review", "newsletter",
)  # fmt: skip
VERBS = ("Add", "Fix", "Rename", "Remove", "Document", "Test", "Speed up", "Simplify")
CITIES = ("Oslo", "Rome", "Lima", "Cairo", "Tokyo", "Quito", "Perth", "Delhi", "Paris", "Porto", "Turin", "Accra")
PRODUCTS = (
    "lamp", "chair", "desk", "kettle", "mirror", "carpet", "shelf", "pillow", "clock", "vase", "basket", "candle",
    "blanket", "curtain", "teapot", "drawer",
)  # fmt: skip
