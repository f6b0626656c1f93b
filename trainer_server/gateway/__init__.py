"""One chat request on its way: checked, sent to an engine, recorded in the ledger, answered."""
