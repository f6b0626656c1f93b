"""What is done beside the event loop: versions that rollouts held are given back, and servers hear what runs did."""
