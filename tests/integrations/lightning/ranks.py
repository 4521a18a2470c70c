"""One of two processes of a Lightning training whose loss becomes NaN; their guards decide together.

python -m torch.distributed.run --standalone --nproc-per-node=2 ranks.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from tracker_diag_lightning import DiagnosticsCallback

import tracker_diag as td
from tests.integrations.lightning.test_lightning import Agent, loader, trainer

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")  # before the monitor, whose ranks come together by it
    ours = td.Monitor(ranks=td.AllReduce(), guards=[td.Guard(do="rollback", act=True)])
    kept = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    both = {"devices": 2, "strategy": "ddp", "enable_checkpointing": True}
    run = trainer(folder, [DiagnosticsCallback(monitor=ours), kept], steps=20, **both)
    run.fit(Agent(nan_from=4), loader(60))
    (folder / f"{run.global_rank}.json").write_text(json.dumps([run.global_step, ours.failures]))
