"""Series of `/metrics`: `counters.py` counts requests and completions, `state.py` reads the rest for each scrape."""
