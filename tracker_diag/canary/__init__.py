"""The weight canary: do new weights reach the sampler?

from tracker_diag.canary import Canary, scores_of_model, scores_of_vllm
"""

from tracker_diag.canary.canary import Canary as Canary
from tracker_diag.canary.scores import scores_of_model as scores_of_model
from tracker_diag.canary.scores import scores_of_sglang as scores_of_sglang
from tracker_diag.canary.scores import scores_of_vllm as scores_of_vllm
