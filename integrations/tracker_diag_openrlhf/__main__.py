"""OpenRLHF's own training script; every worker process of Ray waits for the trainer."""

import json
import os
import runpy

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Where a job that is submitted has its settings, which Ray puts together with those of the script."""


def main() -> None:
    """Train, with the arguments of this process."""
    job = json.loads(os.environ.get(JOB, "{}"))
    job.setdefault("runtime_env", {}).setdefault("worker_process_setup_hook", "tracker_diag_openrlhf.install")
    os.environ[JOB] = json.dumps(job)
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
