"""All examples, one after another on one trainer server: `python -m art_examples --seeds 1 --steps 2`."""

from __future__ import annotations

from art_examples.runner import main

if __name__ == "__main__":
    main()
