"""A random tiny Qwen3-VL, random screenshots, and episodes that the model itself samples, in float32."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from random_models import hidden_states
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from deskhand.models.forward import log_softmax
from deskhand.recorder.graph import Call, CallGraph
from deskhand.trainer.policy import Policy
from deskhand.types import Completion, ImageSpan, PreparedImage, Prompt

VOCABULARY = 48
START, END, IMAGE, VIDEO = 3, 4, 5, 6
BANNED = (0, START, END, IMAGE, VIDEO)

torch.set_num_threads(1)


def build(seed: int = 0) -> Qwen3VLForConditionalGeneration:
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 1024,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(6.0)
    return model


BUILT = build()


def encoded_images(policy: Policy) -> list[int]:
    """A list that gets the number of images of every pass through the vision tower."""
    counts: list[int] = []
    policy.model.model.visual.register_forward_hook(
        lambda module, args, kwargs, output: counts.append(kwargs["grid_thw"].shape[0]), with_kwargs=True
    )
    return counts


def screenshot(seed: int, height: int = 4, width: int = 6) -> PreparedImage:
    """Random pixels; `height` and `width` in patches."""
    pixels = np.random.default_rng(seed).standard_normal((height * width, 3 * 2 * 4 * 4)).astype(np.float32)
    name = hashlib.sha256(pixels.tobytes()).hexdigest()
    return PreparedImage(name, pixels, (1, height, width), height * width // 4, width * 4, height * 4)


@dataclass
class World:
    """Call graphs and the images that they show."""

    graphs: list[CallGraph] = field(default_factory=list)
    images: dict[str, PreparedImage] = field(default_factory=dict)


@torch.no_grad()
def sample(model, ids: tuple[int, ...], spans, images, length: int, temperature: float, random: np.random.Generator):
    """Ids and log-probs, one full forward pass a token."""
    out, logprobs = [], []
    for _ in range(length):
        logits = model.lm_head(hidden_states(model, [Prompt((*ids, *out), tuple(spans))], images)[0][-1:])
        scores = log_softmax(logits, temperature, BANNED)[0]
        token = int(
            random.choice(VOCABULARY, p=np.exp(scores.double().numpy()) / np.exp(scores.double().numpy()).sum())
        )
        out.append(token)
        logprobs.append(float(scores[token]))
    return tuple(out), tuple(logprobs)


def play(
    model,
    world: World,
    seed: int,
    turns: int = 3,
    window: int = 2,
    temperature: float = 1.0,
    first_image: int | None = None,
):
    """An episode: each turn shows a screenshot.

    Beyond `window` screenshots the history is dropped, which forks the graph.
    """
    random = np.random.default_rng(seed)
    graph = CallGraph()
    ids: tuple[int, ...] = ()
    spans: tuple[ImageSpan, ...] = ()
    for turn in range(turns):
        if len(spans) == window:
            ids, spans = (), ()
        height, width = (int(side) for side in random.choice([2, 4], 2))
        shared = turn == 0 and first_image is not None
        image = screenshot(first_image, 4, 4) if shared else screenshot(seed * 100 + turn, height, width + 2)
        world.images[image.sha256] = image
        words = tuple(int(word) for word in random.integers(8, VOCABULARY, random.integers(2, 6)))
        ids += (1, START)
        spans += (ImageSpan(len(ids), image.tokens, image.sha256),)
        ids += (IMAGE,) * image.tokens + (END, *words, 2)
        out, logprobs = sample(model, ids, spans, world.images, int(random.integers(2, 6)), temperature, random)
        completion = Completion(out, logprobs, (0,) * len(out), "stop", ids)
        parent = graph.parent_of(ids, spans, temperature)
        graph.add(Call(f"{seed}-{turn}", parent, ids, spans, completion, temperature))
        ids += out
    world.graphs.append(graph)
    return graph
