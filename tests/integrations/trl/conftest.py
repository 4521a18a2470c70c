"""For runs of TRL on the CPU without any network."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for name, value in quiet.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(Path(__file__).parent)  # for task.py and train.py
    torch.set_num_threads(1)
