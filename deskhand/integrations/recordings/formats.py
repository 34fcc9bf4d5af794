"""A recorded sequence as rows of other trainers' datasets, one function per trainer and form. Used by `export`.

| format     | form | columns |
|------------|------|---------|
| `datasets` | rl   | `input_ids`, `loss_mask`, `logprobs`, `versions`, `temperature`, `reward`, `advantage`, `images` |
| `datasets` | sft  | `input_ids`, `labels` (-100 where not trained), `images` |
| `trl`      | rl   | what GRPOTrainer's `rollout_func` returns: `prompt_ids`, `completion_ids`, `env_mask`, `logprobs`; `reward`, `advantage`, `images` |
| `trl`      | sft  | `prompt`, `completion` (texts with special tokens, one placeholder per image), `images`; one row per reply |
| `verl`     | rl   | `prompt` (messages with `<image>`), `images`, `data_source`, `ability`, `reward_model`, `extra_info`; recorded: `prompts`, `responses`, `response_mask`, `rollout_log_probs`, `uid`, `reward`, `advantage` |
| `verl`     | sft  | `messages`, `images`; one row per reply, the only assistant message |
| `areal`    | sft  | `input_ids`, `loss_mask`, `images` |
| `verifiers` | both | traces (`integrations.recordings.traces`); no `images` column, the messages name the files |

`areal` rl is a file of tensors per group (`integrations.areal.tensors`). Ids have expanded placeholders, log-probs are 0
where nothing was sampled.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskhand.errors import RecordError
from deskhand.integrations.recordings.rows import RecordedRow
from deskhand.integrations.recordings.traces import verifiers_rl, verifiers_sft
from deskhand.types import ImageSpan

IMAGES = "images_file_names"
"""Column of the files of a row's images, relative to the metadata file; `datasets` loads it as `images`."""
_TURN, _END = "<|im_start|>", "<|im_end|>"
_IMAGE_PARTS = ("<|vision_start|>", "<|vision_end|>")
VERL_IMAGE = "<image>"


@dataclass(frozen=True)
class TextOf:
    """Texts of token ids. `tokenizer`: that of the checkpoint which sampled; `image_id`: its placeholder."""

    tokenizer: Any
    image_id: int
    folder: Path
    """Folder of the dataset, in which the images are."""

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def unexpanded(self, token_ids: tuple[int, ...], spans: tuple[ImageSpan, ...]) -> tuple[int, ...]:
        """Return the ids with one placeholder per image."""
        found, end = list[int](), 0
        for span in spans:
            found += token_ids[end : span.start + 1]
            end = span.start + span.count
        return (*found, *token_ids[end:])

    def exact(self, token_ids: tuple[int, ...]) -> str:
        """Return the text. Raises `RecordError` if the tokenizer turns it into other ids."""
        text = self.decode(token_ids)
        if tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) != token_ids:
            raise RecordError("retokenized", "the text of the recorded ids has other ids")
        return text


def about(row: RecordedRow) -> dict[str, Any]:
    """Return the columns that every row has."""
    result = row.result
    return {
        "episode_id": result.episode_id,
        "group_id": row.group_id,
        "task_id": result.task_id,
        "family": result.family,
        "seed": result.seed,
        "split": result.split,
        "instruction": result.instruction,
        "score": result.score,
        "reward": result.reward,
    }


def _files(names: list[str]) -> list[str]:
    return [f"images/{name}.png" for name in names]


def datasets_rl(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any]]:
    sequence = row.sequence
    yield {
        **about(row),
        "advantage": row.advantage,
        "temperature": sequence.temperature,
        "input_ids": list(sequence.token_ids),
        "loss_mask": [int(is_sampled) for is_sampled in sequence.loss_mask],
        "logprobs": list(sequence.logprobs),
        "versions": list(sequence.versions),
        IMAGES: _files(row.images),
    }


def datasets_sft(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any]]:
    ids, mask = row.sequence.token_ids, row.sequence.loss_mask
    labels = [token_id if is_target else -100 for token_id, is_target in zip(ids, mask, strict=True)]
    yield {**about(row), "input_ids": list(ids), "labels": labels, IMAGES: _files(row.images)}


def areal_sft(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any]]:
    mask = [int(is_target) for is_target in row.sequence.loss_mask]
    yield {**about(row), "input_ids": list(row.sequence.token_ids), "loss_mask": mask, IMAGES: _files(row.images)}


def trl_rl(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any]]:
    sequence, first = row.sequence, row.first_sampled
    yield {
        **about(row),
        "advantage": row.advantage,
        "temperature": sequence.temperature,
        "prompt_ids": list(sequence.token_ids[:first]),
        "completion_ids": list(sequence.token_ids[first:]),
        "env_mask": [int(is_sampled) for is_sampled in sequence.loss_mask[first:]],
        "logprobs": list(sequence.logprobs[first:]),
        IMAGES: _files(row.images),
    }


def trl_sft(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any] | RecordError]:
    for prompt_ids, spans, reply_ids in replies(row):
        try:
            prompt, reply = texts.exact(texts.unexpanded(prompt_ids, spans)), texts.exact(reply_ids)
        except RecordError as error:
            yield error
            continue
        yield {**about(row), "prompt": prompt, "completion": reply, IMAGES: _files([span.sha256 for span in spans])}


def verl_rl(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any]]:
    sequence, first = row.sequence, row.first_sampled
    spans = tuple(span for span in sequence.spans if span.start < first)
    facts = about(row)
    yield {
        "data_source": "deskhand",
        "prompt": messages_of(texts, sequence.token_ids[:first], spans),
        "images": _verl_images(spans, texts),
        "ability": "computer_use",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {**facts, "index": facts["seed"]},
        "prompts": list(sequence.token_ids[:first]),
        "responses": list(sequence.token_ids[first:]),
        "response_mask": [int(is_sampled) for is_sampled in sequence.loss_mask[first:]],
        "rollout_log_probs": list(sequence.logprobs[first:]),
        "uid": row.group_id,
        "reward": row.result.reward,
        "advantage": row.advantage,
    }


def _verl_images(spans: tuple[ImageSpan, ...], texts: TextOf) -> list[dict[str, str]]:
    """Return verl's images, whose paths are absolute: it does not know the folder of its file."""
    return [{"image": str(texts.folder / name)} for name in _files([span.sha256 for span in spans])]


def verl_sft(row: RecordedRow, texts: TextOf) -> Iterator[dict[str, Any] | RecordError]:
    for prompt_ids, spans, reply_ids in replies(row):
        try:
            messages = _without_replies(messages_of(texts, prompt_ids, spans))
            reply = texts.exact(reply_ids)
            if not reply.endswith(_END):
                raise RecordError("messages", "a reply that was cut; verl would train an end that was not sampled")
            messages.append({"role": "assistant", "content": reply.removesuffix(_END)})
        except RecordError as error:
            yield error
            continue
        yield {"messages": messages, "images": _verl_images(spans, texts)}


def _without_replies(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the messages with everything from the first user message on as one message, in the template's own text.

    verl's `MultiTurnSFTDataset` trains every assistant message of a row. Earlier replies have rows of their own.
    """
    first = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
    parts = [messages[first]["content"]] if first < len(messages) else []
    parts += [f"{_TURN}{message['role']}\n{message['content']}" for message in messages[first + 1 :]]
    return [*messages[:first], *([{**messages[first], "content": f"{_END}\n".join(parts)}] if parts else [])]


def replies(row: RecordedRow) -> Iterator[tuple[tuple[int, ...], tuple[ImageSpan, ...], tuple[int, ...]]]:
    """Yield (prompt ids, image spans of the prompt, reply ids) of each trained reply."""
    for name in row.sequence.call_ids:
        call = row.result.graph.get(name)
        yield call.prompt_ids, call.spans, call.completion.token_ids


def messages_of(texts: TextOf, prompt_ids: tuple[int, ...], spans: tuple[ImageSpan, ...]) -> list[dict[str, str]]:
    """Return a ChatML prompt as messages, each image as `<image>`, without the generation prompt.

    Raises `RecordError` for a prompt of another form, or with the text `<image>`.
    """
    prompt = texts.exact(texts.unexpanded(prompt_ids, spans))
    placeholder = texts.decode((texts.image_id,)).join(_IMAGE_PARTS)
    if VERL_IMAGE in prompt or not prompt.startswith(_TURN):
        raise RecordError("messages", f"a prompt that is not ChatML, or has the text {VERL_IMAGE}")
    *turns, last = prompt.replace(placeholder, VERL_IMAGE).split(_TURN)[1:]
    messages = []
    for turn in turns:
        role, _, content = turn.partition("\n")
        messages.append({"role": role, "content": content.rstrip("\n").removesuffix(_END)})
    if not last.startswith("assistant\n") or sum(m["content"].count(VERL_IMAGE) for m in messages) != len(spans):
        raise RecordError("messages", "a prompt that does not end before a reply, or has bare images")
    return messages


RowFormat = Callable[[RecordedRow, TextOf], Iterator[dict[str, Any] | RecordError]]
"""Yields rows, and errors of those that are left out."""
ROW_FORMATS: Mapping[tuple[str, str], RowFormat] = {
    ("datasets", "rl"): datasets_rl,
    ("datasets", "sft"): datasets_sft,
    ("trl", "rl"): trl_rl,
    ("trl", "sft"): trl_sft,
    ("verl", "rl"): verl_rl,
    ("verl", "sft"): verl_sft,
    ("areal", "sft"): areal_sft,
    ("verifiers", "rl"): verifiers_rl,
    ("verifiers", "sft"): verifiers_sft,
}
