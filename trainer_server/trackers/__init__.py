"""Trackers of other projects that show the numbers of a training: W&B, TensorBoard, MLflow, trackio.

The library of a tracker is imported when the tracker is made. `trainer_server.tracking` has their names.
"""
