"""The stages of a specialization. `specialize` has the list of them."""
