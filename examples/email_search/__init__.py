"""An agent that answers questions from a mailbox: it searches, reads, and answers with its source (as ART·E does)."""
