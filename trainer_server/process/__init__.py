"""What any process of the server needs: guarded children, atomic files, fault points, hardware."""
