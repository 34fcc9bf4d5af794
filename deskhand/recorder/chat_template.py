"""Behavior of a checkpoint's chat template, detected by comparing it with the renderer.

Used by `recorder.renderer`; start with `inspect_template`. Probe conversations are rendered to ids both ways. Known
variants (default system prompt, tool results in a `tool` or user turn, trimmed white space) are detected. If the
template drops images, `TemplateBehavior.unsupported` says where and requests that need it are rejected. If it rewrites
earlier replies, `RewrittenHistory` decides. Any other difference is a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deskhand.errors import ConfigError
from deskhand.recorder.messages import ImagePart, Message, message

_THOUGHTS = "<think>\nlook\n</think>\n\nclick"
_IMAGE = ImagePart("0" * 64)


@dataclass(frozen=True)
class TemplateBehavior:
    """Differences between the ChatML templates of the supported families."""

    default_system: str | None = None
    """System prompt that the template adds if the messages have none."""
    generation_prompt: str = "assistant\n"
    """Text after `<|im_start|>` that starts a reply."""
    tool_as_user: bool = False
    """Whether tool results are in a user turn, each wrapped in `<tool_response>`."""
    trims: bool = False
    """Whether leading and trailing white space of a message is removed."""
    strips_reasoning: bool = False
    """Whether replies before the last user message lose their thinking."""
    trims_replies: bool = False
    """Whether replies are trimmed too."""
    unsupported: dict[str, str] = field(default_factory=dict)
    """Why messages of a role ("tool"), or images in them ("tool image"), cannot be rendered."""


RewrittenHistory = Literal["error", "preserve", "fork"]
"""Handling of a template that rewrites earlier replies.

"error" rejects the checkpoint. "preserve" renders earlier replies as sampled, unlike the template, so that calls extend
each other. "fork" follows the template, so each such call is a fork.
"""
Render = Callable[[tuple[Message, ...], TemplateBehavior], list[int]]


def inspect_template(tokenizer: Any, render: Render, *, source: str, history: RewrittenHistory) -> TemplateBehavior:
    """Detect the behavior of the chat template. Raises `ConfigError` with the first unsupported difference."""
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(f"{source}: no chat template; add chat_template.jinja to its folder")
    probe = _TemplateProbe(tokenizer, render, source)
    behavior = TemplateBehavior(default_system=probe.default_system(), generation_prompt=probe.generation_prompt())
    user, seen = message("user", "Do it"), message("user", [_IMAGE, "Do it"])
    padded = (message("user", "\n Do it \n\n"),)
    if probe.difference(padded, behavior) and not probe.difference(padded, replace(behavior, trims=True)):
        behavior = replace(behavior, trims=True)
    reply = message("assistant", "ok")
    for what, messages in {
        "user text": (user,),
        "white space around user text": padded,
        "an image before text": (seen,),
        "images between texts": (message("user", ["a", _IMAGE, " b\n", _IMAGE, _IMAGE, "c"]),),
        "images in several turns": (seen, reply, seen, message("assistant", "so"), message("user", ["and", _IMAGE])),
    }.items():
        probe.require(what, messages, behavior)
    behavior = _with_history(probe, behavior, source, history)
    unsupported: dict[str, str] = {}
    if difference := probe.difference((message("system", "Be brief.\n"), seen), behavior):
        unsupported["system"] = f"unsupported rendering of system messages by the chat template: {difference}"
    called = (user, reply, message("tool", "done"))
    behavior = replace(behavior, tool_as_user=bool(probe.difference(called, behavior)))
    twice = (*called, message("tool", "again\n"), reply, message("tool", "more"), user)
    if difference := probe.difference(called, behavior) or probe.difference(twice, behavior):
        unsupported["tool"] = f"unsupported rendering of tool messages by the chat template: {difference}"
    elif difference := probe.difference(
        (user, reply, message("tool", ["a", _IMAGE]), message("tool", [_IMAGE])), behavior
    ):
        unsupported["tool image"] = f"images in tool messages: {difference}; send them in a user message"
    elif behavior.strips_reasoning and (
        difference := probe.difference((user, message("assistant", _THOUGHTS), message("tool", "done")), behavior)
    ):
        unsupported["tool"] = f"the chat template also removes thinking before tool results: {difference}"
    return replace(behavior, unsupported=unsupported)


def _with_history(
    probe: _TemplateProbe, behavior: TemplateBehavior, source: str, history: RewrittenHistory
) -> TemplateBehavior:
    """Return the behavior with the handling of earlier replies. Raises `ConfigError` for an unsupported rewrite."""
    user, reply = message("user", "Do it"), message("assistant", "ok")
    untrimmed = replace(behavior, trims=False)
    rewritten = [
        (what, talk)
        for what, text in {"thoughts": _THOUGHTS, "white space": "\n ok \n"}.items()
        for later in ((user,), (user, reply, user))
        if probe.difference(talk := (user, message("assistant", text), *later), untrimmed)
    ]
    if not rewritten or history == "preserve":
        return behavior
    what = ", ".join(sorted({what for what, _ in rewritten}))
    if history == "error":
        raise ConfigError(
            f"{source}: the chat template rewrites earlier assistant turns ({what}), so no call would extend another; "
            'set engine.rewritten_history to "preserve" (as sampled) or "fork" (follow the template)'
        )
    behavior = replace(behavior, strips_reasoning="thoughts" in what, trims_replies=behavior.trims)
    for what, talk in rewritten:
        if difference := probe.difference(talk, behavior):
            raise ConfigError(
                f"{source}: the chat template rewrites earlier assistant turns ({what}) unexpectedly: {difference}"
            )
    return behavior


class _TemplateProbe:
    """Renders conversations with the template and compares."""

    def __init__(self, tokenizer: Any, render: Render, source: str) -> None:
        self.tokenizer, self.render, self.source = tokenizer, render, source

    def by_template(self, messages: tuple[Message, ...], generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            [{"role": one.role, "content": _content(one)} for one in messages],
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )

    def default_system(self) -> str | None:
        text = self._must((message("user", "Do it"),))
        head, found, _ = text.partition("<|im_start|>user\n")
        start, end = "<|im_start|>system\n", "<|im_end|>\n"
        if found and not head:
            return None
        if found and head.startswith(start) and head.endswith(end):
            return head[len(start) : -len(end)]
        raise ConfigError(f"{self.source}: the chat template is not ChatML; it starts with {text[:40]!r}")

    def generation_prompt(self) -> str:
        user = (message("user", "Do it"),)
        without, text = self._must(user, generation_prompt=False), self._must(user)
        head = text.removeprefix(without)
        if head == text or not head.startswith("<|im_start|>assistant\n"):
            raise ConfigError(
                f"{self.source}: the generation prompt of the chat template must start with <|im_start|>assistant, "
                f"got {text[-40:]!r}"
            )
        return head.removeprefix("<|im_start|>")

    def require(self, what: str, messages: tuple[Message, ...], behavior: TemplateBehavior) -> None:
        if difference := self.difference(messages, behavior):
            raise ConfigError(f"{self.source}: unsupported rendering of {what} by the chat template: {difference}")

    def difference(self, messages: tuple[Message, ...], behavior: TemplateBehavior) -> str:
        """Return how renderer and template differ; empty if they agree."""
        try:
            text = self.by_template(messages)
        except Exception as error:  # a template may raise jinja errors, its own raise_exception or Python errors
            return f"it raises {type(error).__name__}: {str(error)[:120]}"
        expected = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        found = self.render(messages, behavior)
        if expected == found:
            return ""
        count = sum(len(one.image_hashes) for one in messages)
        if text.count("<|image_pad|>") < count:
            return f"it drops {count - text.count('<|image_pad|>')} of {count} images"
        pairs = enumerate(zip(expected, found, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(found)))
        decode = self.tokenizer.backend_tokenizer.decode
        return (
            f"at token {at} it writes {decode(expected[at : at + 8], skip_special_tokens=False)!r}, "
            f"not {decode(found[at : at + 8], skip_special_tokens=False)!r}"
        )

    def _must(self, messages: tuple[Message, ...], generation_prompt: bool = True) -> str:
        try:
            return self.by_template(messages, generation_prompt)
        except Exception as error:  # as in `difference`
            raise ConfigError(
                f"{self.source}: the chat template fails: {type(error).__name__}: {str(error)[:120]}"
            ) from None


def _content(one: Message) -> str | list[dict[str, str]]:
    if not one.image_hashes:
        return one.text
    return [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in one.parts]
