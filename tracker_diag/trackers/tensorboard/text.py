"""Settings of a run that stand in its event files: as hyperparameters, or as text."""

import json
import re
from typing import Any

from tracker_diag.errors import require
from tracker_diag.trackers.keys import flat, plain

TABLE_ROW = re.compile(r"^\|([^|]+)\|(.*)\|\s*$", re.MULTILINE)


def settings(value: Any) -> dict[str, object]:
    """Settings in a summary of the plugins hparams and text; {} if it holds none.

    Hugging Face writes its arguments as JSON under `args`, CleanRL as a table of Markdown under `hyperparameters`.
    """
    from google.protobuf.message import DecodeError

    data = value.metadata.plugin_data
    if data.plugin_name == "hparams":
        message = require("tensorboard.plugins.hparams.plugin_data_pb2", "tensorboard").HParamsPluginData
        try:
            parameters = message.FromString(data.content).session_start_info.hparams
        except DecodeError:
            return {}
        return {
            name: _plain(getattr(parameter, parameter.WhichOneof("kind") or "", None))
            for name, parameter in parameters.items()
        }
    tag = value.tag.removesuffix("/text_summary")
    if tag not in {"args", "hyperparameters"} or not value.tensor.string_val:
        return {}
    text = value.tensor.string_val[0].decode("utf-8", "replace")
    if tag == "hyperparameters":
        cells = [(name.strip(), cell.strip()) for name, cell in TABLE_ROW.findall(text)]
        return {name: plain(cell) for name, cell in cells[2:]}  # below the names of the columns and a ruler
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return dict(flat(arguments, ".")) if isinstance(arguments, dict) else {}


def _plain(value: object) -> object:
    return value if isinstance(value, str | float | bool) else str(value)
