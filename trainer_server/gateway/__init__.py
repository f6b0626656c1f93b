"""The path of one chat request: it is checked, sent to an engine, recorded in the ledger, and answered."""
