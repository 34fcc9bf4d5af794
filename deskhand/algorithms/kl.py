"""Estimators of the KL divergence from sampled tokens.

Source: Schulman, "Approximating KL divergence", 2020 (k1, k2, k3). With `d = log p(x) - log q(x)` and x sampled from q:

    k1 = -d              unbiased for KL(q || p), may be negative
    k2 = d**2 / 2        biased, never negative; its gradient is that of KL(p || q) for samples of p
    k3 = exp(d) - 1 - d  unbiased, never negative
"""

from __future__ import annotations

from typing import Any, Literal

from deskhand.algorithms.arrays import namespace

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs_p: Any, logprobs_q: Any, estimator: Estimator = "k3") -> Any:
    """Return nats per token; the mean over tokens sampled from q estimates KL(q || p)."""
    difference = logprobs_p - logprobs_q
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference**2
    return namespace(difference).expm1(difference) - difference


def reference_penalty(logprobs_new: Any, logprobs_reference: Any, estimator: Literal["k2", "k3"] = "k3") -> Any:
    """Return the KL penalty of each token toward a reference policy, >= 0, with gradient.

    `k3` with `d = reference - new` is GRPO's (DeepSeekMath, arXiv:2402.03300, equation 4); `k2` has the gradient of
    KL(new || reference) for tokens sampled from new.
    """
    return kl_estimate(logprobs_reference, logprobs_new, estimator)
