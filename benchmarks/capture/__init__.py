"""What capture and the gateway cost."""
