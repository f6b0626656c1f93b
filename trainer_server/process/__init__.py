"""What any process of the server needs: guarded children, their environment, atomic files, fault points."""
