"""Tokenizer of the bundled policy. Used by `recipes.tiny`.

A byte-level BPE trained on the suite's sentences, with ChatML's special tokens under Qwen's names, and single tokens
for coordinates and for the fixed parts of actions.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
FRAGMENTS = (
    "user\n",
    "assistant\n",
    "system\n",
    "error: ",
    '{"op":"click","x":',
    '{"op":"move","x":',
    '{"op":"scroll","x":',
    ',"y":',
    ',"dx":',
    ',"dy":',
    ',"count":',
    ',"button":"right"',
    '{"op":"type","text":"',
    '{"op":"key","keys":["',
    '{"op":"wait","seconds":',
    '{"op":"done"}',
    '{"op":"fail","reason":"',
    '{"op":"answer","text":"',
    '","',
    '"]}',
    '"}',
    "}",
)
NUMBERS = tuple(str(n) for n in range(1001))

CHAT_TEMPLATE = """{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}{{- message['content'] }}
{%- else %}{%- for part in message['content'] %}
{%- if part['type'] in ('image', 'image_url') %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}{{- part['text'] }}
{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def build_tokenizer(corpus: list[str], merges: int = 320) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `corpus`. Deterministic and independent of the order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(sorted(set(corpus)), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*FRAGMENTS, *NUMBERS)])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast
