"""Charts of the documentation, drawn from the tables of its pages."""
