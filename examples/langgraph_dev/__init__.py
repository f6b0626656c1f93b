"""An app for `langgraph dev` that is trained from what its users say of its runs."""
