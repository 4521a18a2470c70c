"""A tool-using agent, trained by GRPO on the CPU in half a minute, watched in MLflow.

    pip install "tracker-diag[demo]"
    python examples/agent_rl.py --arm widen
    mlflow ui --backend-store-uri sqlite:///agent_rl.db

The agent and its trainer are those of `tracker-diag demo`; this is the loop around them, with the lines
that you would add to yours marked.
"""

import argparse

import mlflow

import tracker_diag as td
from tracker_diag.demo.grpo import ARMS, train

parser = argparse.ArgumentParser()
parser.add_argument("--arm", choices=ARMS, default="widen")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()

mlflow.set_tracking_uri("sqlite:///agent_rl.db")
mlflow.set_experiment("agent_rl")
with mlflow.start_run(run_name=options.arm):
    tracker = td.wrap(mlflow)  # 1: wrap the tracker that you use
    for step in train(ARMS[options.arm], options.seed, options.steps):
        tracker.diag.observe(  # 2: hand over the tensors that you have
            logprobs=step.logprobs,
            old_logprobs=step.rollout.sampler_logprobs,
            ref_logprobs=step.ref_logprobs,
            response_mask=step.rollout.is_response,
            model_mask=step.rollout.is_model,
        )
        tracker.log_metrics(step.metrics, step=step.step)  # your call, unchanged
    for finding in tracker.diag.close().findings:
        print(finding.rule.id, finding.slice, finding.state, f"from step {finding.onset}:", finding.summary)
