"""What commands print: lists, and the tree of a run."""
