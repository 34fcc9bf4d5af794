"""Messages to token ids for the Qwen2.5-VL and Qwen3-VL families (ChatML).

Used by the recorder and by data export; start with `ChatRenderer.render`. The renderer writes ChatML itself and is
compared at construction with the checkpoint's chat template (`chat_template.inspect_template`). Text is tokenized with
special tokens disabled: a `<|im_end|>` in a user's or a screen's text stays text. Each image is `<|vision_start|>`, one
`<|image_pad|>` per image token, `<|vision_end|>`.

Invariant: sampled replies appear in later prompts as the sampled ids, never as retokenized text. Only the messages
after the longest recorded conversation are rendered, so the new prompt extends that call.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import structlog

from deskhand.errors import ConfigError, RecordError
from deskhand.recorder.chat_template import RewrittenHistory, TemplateBehavior, inspect_template
from deskhand.recorder.messages import Message, Part
from deskhand.recorder.reply_index import ReplyIndex
from deskhand.recorder.reply_parser import OPEN, without_thinking
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.tool_formats import ToolPrompt
from deskhand.types import ImageSpan, PreparedImage, Prompt

log = structlog.get_logger()
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
NEVER_SAMPLED = (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD, "<|vision_pad|>")
STOPS = (IM_END, "<|endoftext|>")


class ChatRenderer:
    """Renders one checkpoint's conversations. `source` names the checkpoint in errors.

    Raises `ConfigError` if the fast tokenizer lacks a special token or cannot keep special tokens out of text, or if
    its chat template is not ChatML as these families write it.
    """

    def __init__(self, tokenizer: Any, *, source: str = "the checkpoint", history: RewrittenHistory = "error") -> None:
        self.source = source
        backend = tokenizer.backend_tokenizer
        self._backend = type(backend).from_str(backend.to_str())  # a copy, because the next line changes it
        self._backend.encode_special_tokens = True
        self._special = {
            token.content: index for index, token in self._backend.get_added_tokens_decoder().items() if token.special
        }
        self.image_id = self._id(IMAGE_PAD)
        self._start, self._end = self._id(IM_START), self._id(IM_END)
        self.end_id = self._end
        """Id that closes a turn."""
        self._vision_start, self._vision_end = self._id(VISION_START), self._id(VISION_END)
        self.banned_ids = tuple(sorted(self._special[name] for name in NEVER_SAMPLED if name in self._special))
        """Ids that must never be sampled: image placeholders and their markers."""
        self.stop_ids = tuple(self._special[name] for name in STOPS if name in self._special)
        """Ids that end a reply."""
        self._control_ids = frozenset(self._special.values())
        for name in self._special:
            if not self._control_ids.isdisjoint(self._backend.encode(name, add_special_tokens=False).ids):
                raise ConfigError(
                    f"{source}: the tokenizer turns the text {name} into a special token; use a fast tokenizer.json"
                )
        self.behavior = inspect_template(tokenizer, self.render_unexpanded, source=source, history=history)
        """Behavior of the checkpoint's chat template."""
        if self.behavior.strips_reasoning or self.behavior.trims_replies:
            log.warning("renderer.history_rewritten", source=source)
        self.tools = ToolPrompt(tokenizer, source)
        self.opens_thinking = self.behavior.generation_prompt.rstrip().endswith(OPEN)
        """Whether the generation prompt opens the reply's thinking."""

    def special_id(self, text: str) -> int | None:
        """Return the id of `text` if it is one special token."""
        return self._special.get(text)

    def text_of(self, token_ids: tuple[int, ...]) -> str:
        """Return the text of sampled ids without the final stop id; other special tokens stay visible."""
        if token_ids and token_ids[-1] in self.stop_ids:
            token_ids = token_ids[:-1]
        return self._backend.decode(list(token_ids), skip_special_tokens=False)

    def token_text(self, token_id: int) -> str:
        """Return the text of one id; U+FFFD for a part of a character."""
        return self._backend.decode([token_id], skip_special_tokens=False)

    def render(
        self, messages: tuple[Message, ...], images: Mapping[str, PreparedImage], replies: ReplyIndex | None = None
    ) -> Prompt:
        """Return the prompt for the reply to `messages`, with the recorded `replies` of the session.

        Raises `InvalidRequestError` if the chat template does not support the messages, `RecordError` if an image is
        not in `images` or missing from the prompt.
        """
        self._check(messages)
        replies = replies or ReplyIndex()
        builder = _PromptBuilder(self, images)
        count, call = replies.longest_prefix(messages)
        has_new_question = self.behavior.strips_reasoning and any(one.role == "user" for one in messages[count:])
        if has_new_question or (call is not None and self.behavior.trims_replies and call.text != call.text.strip()):
            count, call = 0, None
        if call is not None:
            builder.token_ids.extend(call.prompt_ids)
            builder.spans.extend(call.spans)
            self._put_reply(builder, call.completion.token_ids)
        self._put_messages(builder, messages, count, replies, self.behavior)
        builder.special(self._start)
        builder.text(self.behavior.generation_prompt)
        prompt = builder.prompt()
        expected = [sha256 for one in messages for sha256 in one.image_hashes]
        if [span.sha256 for span in prompt.spans] != expected:
            raise RecordError(
                "images_dropped",
                f"the {len(prompt.spans)} images of the prompt are not the {len(expected)} images of the messages",
            )
        return prompt

    def recorded_replies(self, messages: tuple[Message, ...]) -> list[Message]:
        """Return the assistant messages that are rendered as sampled if this recorder sampled them."""
        if self.behavior.trims_replies:
            return []
        first = last_question(messages) if self.behavior.strips_reasoning else 0
        return [one for one in messages[max(0, first) :] if one.role == "assistant"]

    def turns(self, messages: tuple[Message, ...]) -> int:
        """Return the number of turns of the messages in a prompt, each closed by one `<|im_end|>`."""
        added = self.behavior.default_system is not None and messages[0].role != "system"
        joined = sum(
            before.role == one.role == "tool" and self.behavior.tool_as_user for before, one in pairwise(messages)
        )
        return added + len(messages) - joined

    def render_unexpanded(self, messages: tuple[Message, ...], behavior: TemplateBehavior) -> list[int]:
        """Return ids with one placeholder per image, for comparison with the chat template."""
        builder = _PromptBuilder(self, None)
        self._put_messages(builder, messages, 0, ReplyIndex(), behavior)
        builder.special(self._start)
        builder.text(behavior.generation_prompt)
        return list(builder.prompt().token_ids)

    def _id(self, name: str) -> int:
        if name not in self._special:
            raise ConfigError(f"{self.source}: no special token {name}; use a Qwen2.5-VL or Qwen3-VL checkpoint")
        return self._special[name]

    def _check(self, messages: tuple[Message, ...]) -> None:
        if not messages or messages[-1].role == "assistant":
            raise InvalidRequestError(
                "the last message must have the role user or tool; replies cannot be continued", param="messages"
            )
        for index, one in enumerate(messages):
            where = f"messages[{index}]"
            if one.role == "system" and index:
                raise InvalidRequestError("a system message must come first", param=where)
            if one.role in ("system", "assistant") and one.image_hashes:
                raise InvalidRequestError(
                    f"images in {one.role} messages are not supported; put them in user messages", param=where
                )
            reason = self.behavior.unsupported.get(one.role) or (
                one.image_hashes and self.behavior.unsupported.get(f"{one.role} image")
            )
            if reason:
                raise InvalidRequestError(f"{self.source}: {reason}", param=where, code="template")

    def _put_messages(
        self,
        builder: _PromptBuilder,
        messages: tuple[Message, ...],
        count: int,
        replies: ReplyIndex,
        behavior: TemplateBehavior,
    ) -> None:
        if count == 0 and messages[0].role != "system" and behavior.default_system is not None:
            self._put_turn(builder, "system", (behavior.default_system,), TemplateBehavior())
        question = last_question(messages)
        for index in range(count, len(messages)):
            one, before = messages[index], messages[index - 1] if index else None
            reply = replies.reply(before, one) if one.role == "assistant" else None
            if reply is not None and (text := _rewritten(reply.text, behavior, index < question)) != reply.text:
                self._put_turn(builder, "assistant", (text,), behavior)
            elif reply is None and one.role == "assistant":
                text = self.reply_text(one)
                self._put_turn(builder, "assistant", (_rewritten(text, behavior, index < question),), behavior)
            elif reply is not None:
                builder.special(self._start)
                builder.text(behavior.generation_prompt)
                self._put_reply(builder, reply.token_ids)
            elif one.role == "tool" and behavior.tool_as_user:
                after = messages[index + 1] if index + 1 < len(messages) else None
                first, last = before is None or before.role != "tool", after is None or after.role != "tool"
                self._put_tool_response(builder, one, behavior, first, last)
            else:
                self._put_turn(builder, one.role, one.parts, behavior)

    def reply_text(self, reply: Message) -> str:
        """Return the text of an assistant message, with its tool calls as the model family writes them."""
        if not reply.calls:
            return reply.text
        if self.tools.format is None:
            raise InvalidRequestError(
                f"{self.source}: the chat template has no known format of tool calls", param="messages"
            )
        return self.tools.format.write(reply.text, reply.calls)

    def _put_reply(self, builder: _PromptBuilder, token_ids: tuple[int, ...]) -> None:
        builder.recorded(token_ids)
        if token_ids[-1:] != (self._end,):
            builder.special(self._end)
        builder.text("\n")

    def _put_turn(
        self, builder: _PromptBuilder, role: str, parts: tuple[Part, ...], behavior: TemplateBehavior
    ) -> None:
        builder.special(self._start)
        builder.text(role + "\n")
        self._put_parts(builder, strip_parts(parts) if behavior.trims else parts)
        builder.special(self._end)
        builder.text("\n")

    def _put_tool_response(
        self, builder: _PromptBuilder, one: Message, behavior: TemplateBehavior, first: bool, last: bool
    ) -> None:
        if first:
            builder.special(self._start)
            builder.text("user")
        builder.text("\n<tool_response>\n")
        self._put_parts(builder, strip_parts(one.parts) if behavior.trims else one.parts)
        builder.text("\n</tool_response>")
        if last:
            builder.special(self._end)
            builder.text("\n")

    def _put_parts(self, builder: _PromptBuilder, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part, str):
                builder.text(part)
            else:
                builder.special(self._vision_start)
                builder.image(part.sha256)
                builder.special(self._vision_end)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text. Raises `RecordError` if the tokenizer produces a special token."""
        token_ids = self._backend.encode(text, add_special_tokens=False).ids
        if not self._control_ids.isdisjoint(token_ids):
            raise RecordError("special_token_in_text", "tokenizing plain text produced a special token")
        return token_ids


def _rewritten(text: str, behavior: TemplateBehavior, before_question: bool) -> str:
    """Return a reply's text as the template writes it in history."""
    text = without_thinking(text) if behavior.strips_reasoning and before_question else text
    return text.strip() if behavior.trims_replies else text


def last_question(messages: tuple[Message, ...]) -> int:
    """Return the index of the last user message; -1 if there is none."""
    return max((index for index, one in enumerate(messages) if one.role == "user"), default=-1)


def strip_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return a message's parts without leading and trailing white space."""
    found = list(parts)
    if found and isinstance(found[0], str):
        found[0] = found[0].lstrip()
    if found and isinstance(found[-1], str):
        found[-1] = found[-1].rstrip()
    return tuple(part for part in found if part != "")


class _PromptBuilder:
    """Collects ids and spans. Adjacent texts are tokenized together, like the template's text."""

    def __init__(self, renderer: ChatRenderer, images: Mapping[str, PreparedImage] | None) -> None:
        self.renderer, self.images = renderer, images
        self.token_ids: list[int] = []
        self.spans: list[ImageSpan] = []
        self._texts: list[str] = []

    def text(self, text: str) -> None:
        self._texts.append(text)

    def special(self, token_id: int) -> None:
        self._flush()
        self.token_ids.append(token_id)

    def recorded(self, token_ids: tuple[int, ...]) -> None:
        self._flush()
        self.token_ids.extend(token_ids)

    def image(self, sha256: str) -> None:
        self._flush()
        try:
            count = self.images[sha256].tokens if self.images is not None else 1
        except KeyError:
            raise RecordError("image_unknown", f"image {sha256[:12]} is in the messages and was never added") from None
        self.spans.append(ImageSpan(len(self.token_ids), count, sha256))
        self.token_ids.extend([self.renderer.image_id] * count)

    def prompt(self) -> Prompt:
        self._flush()
        images = {span.sha256: self.images[span.sha256] for span in self.spans} if self.images is not None else None
        return Prompt(tuple(self.token_ids), tuple(self.spans), images)

    def _flush(self) -> None:
        if self._texts:
            self.token_ids.extend(self.renderer.encode_text("".join(self._texts)))
            self._texts.clear()
