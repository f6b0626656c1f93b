"""Examples; installed as `art_examples`, so that `art-langgraph quickstart` works from a wheel too."""
