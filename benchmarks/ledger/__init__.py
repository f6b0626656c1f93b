"""The ledger with millions of completions."""
