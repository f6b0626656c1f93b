"""An agent that plays 2048: long trajectories with a shaped reward."""
