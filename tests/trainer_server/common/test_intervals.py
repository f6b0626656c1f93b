"""Wilson's interval of a success rate."""

from __future__ import annotations

import pytest

from trainer_server.common.intervals import wilson


def test_the_interval_is_wilsons() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Wilson (1927)
    assert wilson(0, 4)[0] == 0.0
    assert wilson(4, 4)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_rate_is_within_its_interval_whatever_is_rounded() -> None:
    for n in range(1, 200):
        for successes in range(n + 1):
            low, high = wilson(successes, n)
            assert 0.0 <= low <= successes / n <= high <= 1.0, (successes, n)
