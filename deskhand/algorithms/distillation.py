"""On-policy distillation: the tokens that the student sampled are trained toward a teacher.

    A'_t = rl_loss_weight * A_t + distill_loss_weight * (log p_teacher(x_t | x_<t) - log p_student(x_t | x_<t))

The difference is the estimate of -KL(student || teacher) at one sampled token. As an advantage with discount 0 it
lowers this reverse KL divergence at every state that the student visits. The student's log-probs are those recorded
when it sampled, so the importance weights of the objective apply to both terms. With `rl_loss_weight` 0 rewards are
ignored.

Sources: Lu and Thinking Machines Lab, "On-Policy Distillation" (2025, thinkingmachines.ai/blog/on-policy-distillation);
GKD with student data and reverse KL, Agarwal et al. (arXiv:2306.13649); together with rewards, KDRL, Xu et al.
(arXiv:2506.02208). The names of the weights are AReaL's.
"""

from __future__ import annotations

import numpy as np


def distillation_advantages(
    advantages: np.ndarray,
    logprobs: np.ndarray,
    teacher_logprobs: np.ndarray,
    *,
    rl_loss_weight: float = 1.0,
    distill_loss_weight: float = 1.0,
) -> np.ndarray:
    """Return the advantages of a sequence's sampled tokens, float64[tokens]. Log-probs are in nats."""
    difference = np.asarray(teacher_logprobs, np.float64) - np.asarray(logprobs, np.float64)
    return rl_loss_weight * np.asarray(advantages, np.float64) + distill_loss_weight * difference
