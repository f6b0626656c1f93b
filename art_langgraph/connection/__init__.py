"""`art-langgraph connect`: a server elsewhere, for all programs of this user."""
