"""An agent that plays tic-tac-toe, against a fixed opponent or against an earlier version of itself."""
