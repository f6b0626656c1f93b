"""Tasks that the embedded model can learn, and a program that measures how far it gets."""
