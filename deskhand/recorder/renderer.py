"""Messages to token ids for the Qwen2.5-VL and Qwen3-VL families (ChatML). Invariant: token in, token out.

What a call sampled comes back in later prompts as the ids that were sampled, never as tokenised text; what stands after the
longest recorded conversation is all that is rendered anew, so the new prompt extends that call. Text is tokenised with special
tokens switched off: a `<|im_end|>` in a user's or a screen's text stays text. Each picture is
`<|vision_start|>`, one `<|image_pad|>` per image token, `<|vision_end|>`.

The renderer writes ChatML itself and compares itself at construction with the checkpoint's own chat template
(`template.inspect_template`).
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
from deskhand.recorder.tool_prompt import ToolPrompt
from deskhand.types import ImageSpan, PreparedImage, Prompt

log = structlog.get_logger()
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
NEVER_SAMPLED = (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD, "<|vision_pad|>")
STOPS = (IM_END, "<|endoftext|>")


class ChatRenderer:
    """Renders one checkpoint's conversations.

    `tokenizer` is a fast Hugging Face tokenizer with a chat template; `source` names the checkpoint in errors. Raises
    `ConfigError` when the tokenizer lacks a special token, cannot keep special tokens out of text, or when its chat template is not
    ChatML as these families write it. A template that rewrites earlier assistant turns (removes their thoughts) is
    refused too, unless `history` says otherwise (`template.History`); what was chosen then is logged.
    """

    def __init__(self, tokenizer: Any, *, source: str = "the checkpoint", history: RewrittenHistory = "error") -> None:
        self.source = source
        backend = tokenizer.backend_tokenizer
        self._backend = type(backend).from_str(
            backend.to_str()
        )  # a copy: the switch below must not change the tokenizer of others
        self._backend.encode_special_tokens = True
        self._special = {
            token.content: index for index, token in self._backend.get_added_tokens_decoder().items() if token.special
        }
        self.image_id = self._id(IMAGE_PAD)
        self._start, self._end = self._id(IM_START), self._id(IM_END)
        self.end_id = self._end
        """The id that closes a turn."""
        self._vision_start, self._vision_end = self._id(VISION_START), self._id(VISION_END)
        self.banned_ids = tuple(sorted(self._special[name] for name in NEVER_SAMPLED if name in self._special))
        """Ids that must never be sampled: picture placeholders and their markers."""
        self.stop_ids = tuple(self._special[name] for name in STOPS if name in self._special)
        """Ids that end a reply."""
        self._control_ids = frozenset(self._special.values())
        for name in self._special:
            if not self._control_ids.isdisjoint(self._backend.encode(name, add_special_tokens=False).ids):
                raise ConfigError(
                    f"the tokenizer of {source} turns the text {name} into a special token; it must have a fast tokenizer.json"
                )
        self.layout = inspect_template(tokenizer, self.render_unexpanded, source=source, history=history)
        """What the checkpoint's chat template does, as found at construction."""
        if self.layout.strips_reasoning or self.layout.trims_replies:
            log.warning(
                "renderer.forks", source=source, reason="the chat template rewrites earlier replies; history is fork"
            )
        self.tools = ToolPrompt(tokenizer, source)
        self.opens_thinking = self.layout.generation_prompt.rstrip().endswith(OPEN)
        """Whether the prompt itself opens the reply's thinking."""

    def special_id(self, text: str) -> int | None:
        """The id of `text` if it is exactly one special token."""
        return self._special.get(text)

    def text_of(self, token_ids: tuple[int, ...]) -> str:
        """The text of sampled ids without the final stop id; special tokens inside stay visible."""
        if token_ids and token_ids[-1] in self.stop_ids:
            token_ids = token_ids[:-1]
        return self._backend.decode(list(token_ids), skip_special_tokens=False)

    def token_text(self, token_id: int) -> str:
        """The text of one id alone; U+FFFD where it is part of a character."""
        return self._backend.decode([token_id], skip_special_tokens=False)

    def render(
        self, messages: tuple[Message, ...], images: Mapping[str, PreparedImage], recall: ReplyIndex | None = None
    ) -> Prompt:
        """The prompt that asks for the reply to `messages`.

        `images` must hold each picture of the messages. Raises `RequestRefused` when the checkpoint's template has no place for
        something in the messages, `RecordError` when the pictures of prompt and messages differ.
        """
        self._check(messages)
        recall = recall or ReplyIndex()
        line = _Line(self, images)
        count, call = recall.longest_prefix(messages)
        asked_again = self.layout.strips_reasoning and any(one.role == "user" for one in messages[count:])
        if asked_again or (call is not None and self.layout.trims_replies and call.text != call.text.strip()):
            count, call = 0, None
        if call is not None:
            line.token_ids.extend(call.prompt_ids)
            line.spans.extend(call.spans)
            self._put_reply(line, call.completion.token_ids)
        self._put_messages(line, messages, count, recall, self.layout)
        line.special(self._start)
        line.text(self.layout.generation_prompt)
        prompt = line.prompt()
        expected = [sha256 for one in messages for sha256 in one.pictures]
        if [span.sha256 for span in prompt.spans] != expected:
            raise RecordError(
                "images_dropped",
                f"the messages have {len(expected)} images, the prompt has {len(prompt.spans)} or others",
            )
        return prompt

    def recorded_replies(self, messages: tuple[Message, ...]) -> list[Message]:
        """The assistant's messages that stand as they were sampled, when this recorder sampled them."""
        if self.layout.trims_replies:
            return []
        first = last_question(messages) if self.layout.strips_reasoning else 0
        return [one for one in messages[max(0, first) :] if one.role == "assistant"]

    def turns(self, messages: tuple[Message, ...]) -> int:
        """How many turns the messages are in a prompt, each closed by one `<|im_end|>`."""
        added = self.layout.default_system is not None and messages[0].role != "system"
        joined = sum(
            before.role == one.role == "tool" and self.layout.tool_as_user for before, one in pairwise(messages)
        )
        return added + len(messages) - joined

    def render_unexpanded(self, messages: tuple[Message, ...], layout: TemplateBehavior) -> list[int]:
        """Ids with one placeholder per picture, as the chat template writes them; used to compare the two."""
        line = _Line(self, None)
        self._put_messages(line, messages, 0, ReplyIndex(), layout)
        line.special(self._start)
        line.text(layout.generation_prompt)
        return list(line.prompt().token_ids)

    def _id(self, name: str) -> int:
        if name not in self._special:
            raise ConfigError(
                f"the tokenizer of {self.source} has no special token {name}; give a Qwen2.5-VL or Qwen3-VL checkpoint"
            )
        return self._special[name]

    def _check(self, messages: tuple[Message, ...]) -> None:
        if not messages or messages[-1].role == "assistant":
            raise InvalidRequestError(
                "the last message must be the user's or a tool's; replies are not continued", param="messages"
            )
        for index, one in enumerate(messages):
            where = f"messages[{index}]"
            if one.role == "system" and index:
                raise InvalidRequestError("a system message must be the first", param=where)
            if one.role in ("system", "assistant") and one.pictures:
                raise InvalidRequestError(
                    f"images in {one.role} messages are not taken; put them in user messages", param=where
                )
            reason = self.layout.refusals.get(one.role) or (
                one.pictures and self.layout.refusals.get(f"{one.role} image")
            )
            if reason:
                raise InvalidRequestError(f"{self.source}: {reason}", param=where, code="template")

    def _put_messages(
        self, line: _Line, messages: tuple[Message, ...], count: int, recall: ReplyIndex, layout: TemplateBehavior
    ) -> None:
        """Put the messages from index `count` on."""
        if count == 0 and messages[0].role != "system" and layout.default_system is not None:
            self._put_turn(line, "system", (layout.default_system,), TemplateBehavior())
        asked = last_question(messages)
        for index in range(count, len(messages)):
            one, before = messages[index], messages[index - 1] if index else None
            said = recall.reply(before, one) if one.role == "assistant" else None
            if said is not None and (text := _rewritten(said.text, layout, index < asked)) != said.text:
                self._put_turn(line, "assistant", (text,), layout)
            elif said is None and one.role == "assistant":
                text = self.text_said(one)
                self._put_turn(line, "assistant", (_rewritten(text, layout, index < asked),), layout)
            elif said is not None:
                line.special(self._start)
                line.text(layout.generation_prompt)
                self._put_reply(line, said.token_ids)
            elif one.role == "tool" and layout.tool_as_user:
                after = messages[index + 1] if index + 1 < len(messages) else None
                first, last = before is None or before.role != "tool", after is None or after.role != "tool"
                self._put_tool_response(line, one, layout, first, last)
            else:
                self._put_turn(line, one.role, one.parts, layout)

    def text_said(self, reply: Message) -> str:
        """The text that a model of this family says to give an assistant's message, calls of tools included."""
        return self._with_calls(reply) if reply.calls else reply.text

    def _with_calls(self, one: Message) -> str:
        """The text of an assistant's turn that this recorder did not sample, as the family writes its calls."""
        if self.tools.format is None:
            raise InvalidRequestError(
                f"{self.source}: the chat template has no known way to write tool calls", param="messages"
            )
        return self.tools.format.write(one.text, one.calls)

    def _put_reply(self, line: _Line, token_ids: tuple[int, ...]) -> None:
        line.recorded(token_ids)
        if token_ids[-1:] != (self._end,):
            line.special(self._end)
        line.text("\n")

    def _put_turn(self, line: _Line, role: str, parts: tuple[Part, ...], layout: TemplateBehavior) -> None:
        line.special(self._start)
        line.text(role + "\n")
        self._put_parts(line, strip_parts(parts) if layout.trims else parts)
        line.special(self._end)
        line.text("\n")

    def _put_tool_response(self, line: _Line, one: Message, layout: TemplateBehavior, first: bool, last: bool) -> None:
        if first:
            line.special(self._start)
            line.text("user")
        line.text("\n<tool_response>\n")
        self._put_parts(line, strip_parts(one.parts) if layout.trims else one.parts)
        line.text("\n</tool_response>")
        if last:
            line.special(self._end)
            line.text("\n")

    def _put_parts(self, line: _Line, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part, str):
                line.text(part)
            else:
                line.special(self._vision_start)
                line.picture(part.sha256)
                line.special(self._vision_end)

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; never a special token. Raises `RecordError` if the tokenizer makes one all the same."""
        token_ids = self._backend.encode(text, add_special_tokens=False).ids
        if not self._control_ids.isdisjoint(token_ids):
            raise RecordError("special_token_in_text", "tokenising plain text gave a special token")
        return token_ids


def _rewritten(text: str, layout: TemplateBehavior, before_question: bool) -> str:
    """A reply's text as the template writes it in history."""
    text = without_thinking(text) if layout.strips_reasoning and before_question else text
    return text.strip() if layout.trims_replies else text


def last_question(messages: tuple[Message, ...]) -> int:
    """Index of the last user message; -1 if there is none."""
    return max((index for index, one in enumerate(messages) if one.role == "user"), default=-1)


def strip_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """A message's parts without white space at both ends."""
    found = list(parts)
    if found and isinstance(found[0], str):
        found[0] = found[0].lstrip()
    if found and isinstance(found[-1], str):
        found[-1] = found[-1].rstrip()
    return tuple(part for part in found if part != "")


class _Line:
    """Collects ids and spans. Texts that touch each other are tokenised together, as the template's text would be."""

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

    def picture(self, sha256: str) -> None:
        self._flush()
        try:
            count = self.images[sha256].tokens if self.images is not None else 1
        except KeyError:
            raise RecordError(
                "image_unknown", f"image {sha256[:12]} is named in the messages and was never added"
            ) from None
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
