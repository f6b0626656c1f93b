"""TensorBoard: event files, written without TensorFlow and without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_server.common.jsonl import to_json
from trainer_server.tracking import TrackedRun, import_library, numbers


class TensorBoardTracker:
    """Writes a directory of event files for each training.

    The directory is `ART_TENSORBOARD_DIR/<id of the training>`, by default in `tensorboard` of the home directory.
    """

    remedy = "Is the disk full, or the directory of ART_TENSORBOARD_DIR read-only?"

    def __init__(self) -> None:
        self._files = import_library("tensorboard.summary.writer.event_file_writer", "tensorboard", "tensorboard")
        self._events = import_library("tensorboard.compat.proto.event_pb2", "tensorboard", "tensorboard")
        self._summaries = import_library("tensorboard.compat.proto.summary_pb2", "tensorboard", "tensorboard")
        self._tensors = import_library("tensorboard.compat.proto.tensor_pb2", "tensorboard", "tensorboard")
        self._writer: Any = None

    def start(self, run: TrackedRun) -> None:
        root = os.environ.get("ART_TENSORBOARD_DIR")
        directory = (Path(root).expanduser() if root else run.home / "tensorboard") / run.id
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = self._files.EventFileWriter(str(directory))
        self._text("config", to_json({"policy": run.policy, "run": run.name, **run.config}), 0)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        values = [self._summaries.Summary.Value(tag=tag, simple_value=x) for tag, x in numbers(metrics).items()]
        self._add(step, self._summaries.Summary(value=values))
        self._writer.flush()

    def finish(self, error: str | None) -> None:
        if error is not None:
            self._text("error", error, 0)
        self._writer.close()

    def _text(self, tag: str, text: str, step: int) -> None:
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        value = self._summaries.Summary.Value(
            tag=f"{tag}/text_summary",
            metadata=self._summaries.SummaryMetadata(plugin_data=plugin),
            tensor=self._tensors.TensorProto(dtype="DT_STRING", string_val=[text.encode()]),
        )
        self._add(step, self._summaries.Summary(value=[value]))

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))
