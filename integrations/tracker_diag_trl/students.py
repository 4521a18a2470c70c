"""Tensors of trainers whose student learns from a teacher, which is their reference.

Each loss is looked at where it compares the two. Only tokens that the student has sampled count, as an estimate of
their KL needs samples of the student.
"""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.nn.functional import cross_entropy

from tracker_diag import Monitor
from tracker_diag.metrics.series import Pair
from tracker_diag_trl.tensors import HINTS, GrpoTensors, Hooked

IGNORED = -100
"""Label of a token that no loss is taken of."""


class StudentTensors(GrpoTensors):
    """What all of them have in common."""

    def _has_reference(self, args: Any) -> bool:
        return True

    def _compare(self, student: Any, teacher: Any, labels: Any, **more: Any) -> None:
        """Tell the monitor of a micro-batch.

        Args:
            student: (B, T, V) logits, at the temperature of the loss.
            teacher: (B, T) log-probabilities of the tokens.
            labels: (B, T) the tokens, `IGNORED` in place of those that are not trained on.
            more: what GRPO has among its inputs.
        """
        inputs = {"completion_ids": labels.clamp(min=0), "completion_mask": labels != IGNORED, **more}
        if torch.is_grad_enabled():  # else it is an evaluation
            self._logprobs = picked(student, labels)
            self.loss(None, {"inputs": inputs | {"ref_per_token_logps": teacher}})


class SdftTensors(StudentTensors):
    """Of SDFT and SDPO, which train on a generation in several steps, as GRPO does."""

    generates = "sample_rollouts"
    hints: ClassVar[Mapping[Pair, str]] = {"policy": HINTS["policy"]}

    def __init__(self, trainer: Any, monitor: Monitor) -> None:
        super().__init__(trainer, monitor)
        self.sampled_elsewhere = False  # what vLLM says of its samples is not kept
        self._masks = True  # SDPO leaves out rows whose teacher would know nothing more

    @property
    def hooked(self) -> Hooked:
        return {"_compute_teacher_student_logits": (("inputs",), self._forwarded)}

    def _forwarded(self, result: Any, given: Mapping[str, Any]) -> None:
        if not getattr(self._trainer, "generate_from_teacher", False):
            labels = result.completion_ids.where(result.loss_mask.bool(), IGNORED)
            names = {"prompt_ids", "prompt_mask", "old_per_token_logps", "advantages"} & given["inputs"].keys()
            more = {name: given["inputs"][name] for name in names}
            self._compare(result.student_logits, picked(result.teacher_logits, labels), labels, **more)


class GkdTensors(StudentTensors):
    """Of GKD. A batch is the dataset's, unless the student, or for `seq_kd` the teacher, has generated one."""

    generates = ""
    hints: ClassVar[Mapping[Pair, str]] = {}
    _sampled = False

    def _schedule(self, args: Any) -> tuple[int, int]:
        return 1, 1

    @property
    def hooked(self) -> Hooked:
        return {
            "generate_on_policy_outputs": (("model",), self._generated),
            "generalized_jsd_loss": (("student_logits", "teacher_logits", "labels"), self._diverged),
        }

    def _generated(self, result: Any, given: Mapping[str, Any]) -> None:
        self._sampled = given["model"] is not self._trainer.accelerator.unwrap_model(self._trainer.teacher_model)

    def _diverged(self, result: Any, given: Mapping[str, Any]) -> None:
        sampled, self._sampled = self._sampled, False
        if sampled:
            self._compare(given["student_logits"], picked(given["teacher_logits"], given["labels"]), given["labels"])


class IwOpdTensors(GkdTensors):
    """Of IW-OPD, whose student has sampled each batch, perhaps by vLLM."""

    hints: ClassVar[Mapping[Pair, str]] = {"mismatch": HINTS["mismatch"]}

    @property
    def hooked(self) -> Hooked:
        given = ("student_logits", "labels", "teacher_actual_logprobs", "rollout_logprobs")
        return {"_compute_iw_opd_loss": (given, self._weighted)}

    def _weighted(self, result: Any, given: Mapping[str, Any]) -> None:
        student = given["student_logits"].detach() / self._trainer.temperature
        sampler = {"sampling_per_token_logps": given.get("rollout_logprobs")}
        self._compare(student, given["teacher_actual_logprobs"], given["labels"], **sampler)


class A2poTensors(StudentTensors):
    """Of A2PO, whose reference is its first policy. It scores its samples with the reference, then with the policy.

    Its functions give sums over sequences. So the helper that they take the tokens' values from is looked at.
    """

    generates = ""
    hints: ClassVar[Mapping[Pair, str]] = {}
    _scores: Any = None
    _reference: Any = None

    def _schedule(self, args: Any) -> tuple[int, int]:
        return 1, 1

    @property
    def hooked(self) -> Hooked:
        given = ("input_ids", "attention_mask", "logits_to_keep")
        return {"selective_log_softmax": ((), self._scored), "_get_sequence_logps": (given, self._summed)}

    def owner(self, name: str) -> Any:
        kind = next(kind for kind in type(self._trainer).__mro__ if kind.__name__ == "A2POTrainer")
        return sys.modules[kind.__module__] if name == "selective_log_softmax" else self._trainer

    def _scored(self, result: Any, given: Mapping[str, Any]) -> None:
        self._scores = result.detach()

    def _summed(self, result: Any, given: Mapping[str, Any]) -> None:
        if not torch.is_grad_enabled():
            self._reference = self._scores
            return
        ids, mask = given["input_ids"], given["attention_mask"]
        at = ids.shape[1] - given["logits_to_keep"]
        inputs = {"prompt_ids": ids[:, :at], "prompt_mask": mask[:, :at], "completion_ids": ids[:, at:]}
        inputs |= {"completion_mask": mask[:, at:], "ref_per_token_logps": self._reference}
        self._logprobs, self._scores, self._reference = self._scores, None, None
        self.loss(None, {"inputs": inputs})


def picked(logits: Any, labels: Any) -> Any:
    """(B, T) float32 log-probabilities of `labels` (B, T), 0 for `IGNORED`, from `logits` (B, T, V).

    A sequence at a time: of all of them the float32 logits would take as much memory as the loss does.
    """
    pairs = zip(logits.detach(), labels, strict=True)
    return torch.stack([-cross_entropy(row.float(), ids, ignore_index=IGNORED, reduction="none") for row, ids in pairs])


STUDENTS: Mapping[str, type[GrpoTensors]] = {
    "GKDTrainer": GkdTensors, "SDFTTrainer": SdftTensors, "SDPOTrainer": SdftTensors, "IWOPDTrainer": IwOpdTensors,
    "A2POTrainer": A2poTensors,
}  # fmt: skip
"""By the name of TRL's class."""
