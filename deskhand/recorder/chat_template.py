"""What a checkpoint's chat template does. Invariant: the renderer is compared with the template before it renders anything.

Probe conversations are rendered both ways, to ids. Where the template does what these families do in one of two ways (a default
system prompt or none; tool results as a `tool` turn or wrapped in a user turn; white space around a message kept or trimmed), the
way is read off. Where it drops pictures, the place is noted in `Layout.refusals` and requests that need it are refused. Where it
rewrites earlier replies, the caller's choice of `History` says what is done. Anything else that differs is a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deskhand.errors import ConfigError
from deskhand.recorder.messages import ImagePart, Message, message

_THOUGHTS = "<think>\nlook\n</think>\n\nclick"
_PICTURE = ImagePart("0" * 64)


@dataclass(frozen=True)
class TemplateBehavior:
    """The places where ChatML templates of the family differ."""

    default_system: str | None = None
    """System prompt that the template adds when the messages bring none."""
    generation_prompt: str = "assistant\n"
    """Text after `<|im_start|>` that asks for a reply."""
    tool_as_user: bool = False
    """Tool results stand in a user turn, each wrapped in `<tool_response>`."""
    trims: bool = False
    """White space at both ends of a message is removed."""
    strips_reasoning: bool = False
    """Replies before the last user message stand without their thinking."""
    trims_replies: bool = False
    """Replies are trimmed too, instead of standing as they were sampled."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Why messages of a role ("tool") or pictures in them ("tool image") cannot be rendered."""


RewrittenHistory = Literal["error", "preserve", "fork"]
"""What is done about a template that rewrites earlier replies: it is refused; earlier replies stand as they were sampled, against
the template, so that calls extend each other; or they stand as the template writes them, and each such call is a fork."""
Render = Callable[[tuple[Message, ...], TemplateBehavior], list[int]]


def inspect_template(tokenizer: Any, render: Render, *, source: str, history: RewrittenHistory) -> TemplateBehavior:
    """Read the layout off the chat template and compare. Raises `ConfigError` naming what the template does otherwise."""
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(f"{source} has no chat template; put chat_template.jinja into its folder")
    probe = _Probe(tokenizer, render, source)
    layout = TemplateBehavior(default_system=probe.default_system(), generation_prompt=probe.reply_head())
    user, seen = message("user", "Do it"), message("user", [_PICTURE, "Do it"])
    padded = (message("user", "\n Do it \n\n"),)
    if probe.difference(padded, layout) and not probe.difference(padded, replace(layout, trims=True)):
        layout = replace(layout, trims=True)
    reply = message("assistant", "ok")
    for what, messages in {
        "a user's text": (user,),
        "white space around a user's text": padded,
        "a picture before text": (seen,),
        "pictures between texts": (message("user", ["a", _PICTURE, " b\n", _PICTURE, _PICTURE, "c"]),),
        "pictures in several turns": (
            seen,
            reply,
            seen,
            message("assistant", "so"),
            message("user", ["and", _PICTURE]),
        ),
    }.items():
        probe.demand(what, messages, layout)
    layout = _with_history(probe, layout, source, history)
    refusals: dict[str, str] = {}
    if difference := probe.difference((message("system", "Be brief.\n"), seen), layout):
        refusals["system"] = f"the chat template treats system messages in a way of its own: {difference}"
    called = (user, reply, message("tool", "done"))
    layout = replace(layout, tool_as_user=bool(probe.difference(called, layout)))
    twice = (*called, message("tool", "again\n"), reply, message("tool", "more"), user)
    if difference := probe.difference(called, layout) or probe.difference(twice, layout):
        refusals["tool"] = f"the chat template treats tool messages in a way of its own: {difference}"
    elif difference := probe.difference(
        (user, reply, message("tool", ["a", _PICTURE]), message("tool", [_PICTURE])), layout
    ):
        refusals["tool image"] = f"pictures in tool messages: {difference}; send them in a user message"
    elif layout.strips_reasoning and (
        difference := probe.difference((user, message("assistant", _THOUGHTS), message("tool", "done")), layout)
    ):
        refusals["tool"] = f"the chat template removes thinking before tool results too: {difference}"
    return replace(layout, refusals=refusals)


def _with_history(probe: _Probe, layout: TemplateBehavior, source: str, history: RewrittenHistory) -> TemplateBehavior:
    """The layout with what is done about earlier replies. Raises `ConfigError` when the template rewrites them and may not."""
    user, reply = message("user", "Do it"), message("assistant", "ok")
    kept = replace(layout, trims=False)
    rewritten = [
        (what, talk)
        for what, text in {"thoughts": _THOUGHTS, "white space": "\n ok \n"}.items()
        for later in ((user,), (user, reply, user))
        if probe.difference(talk := (user, message("assistant", text), *later), kept)
    ]
    if not rewritten or history == "preserve":
        return layout
    what = ", ".join(sorted({what for what, _ in rewritten}))
    if history == "error":
        raise ConfigError(
            f"the chat template of {source} rewrites earlier assistant turns ({what}); no call would extend another; choose "
            'history "preserve" to let them stand as they were sampled, or "fork" to follow the template'
        )
    layout = replace(layout, forgets_thoughts="thoughts" in what, trims_replies=layout.trims)
    for what, talk in rewritten:
        if difference := probe.difference(talk, layout):
            raise ConfigError(
                f"the chat template of {source} rewrites earlier assistant turns ({what}) in a way of its own: {difference}"
            )
    return layout


class _Probe:
    """Renders conversations by the template and compares."""

    def __init__(self, tokenizer: Any, render: Render, source: str) -> None:
        self.tokenizer, self.render, self.source = tokenizer, render, source

    def by_template(self, messages: tuple[Message, ...], reply_head: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            [{"role": one.role, "content": _content(one)} for one in messages],
            tokenize=False,
            add_generation_prompt=reply_head,
        )

    def default_system(self) -> str | None:
        text = self._must((message("user", "Do it"),))
        head, found, _ = text.partition("<|im_start|>user\n")
        start, end = "<|im_start|>system\n", "<|im_end|>\n"
        if found and not head:
            return None
        if found and head.startswith(start) and head.endswith(end):
            return head[len(start) : -len(end)]
        raise ConfigError(f"the chat template of {self.source} is not ChatML: it starts with {text[:40]!r}")

    def reply_head(self) -> str:
        user = (message("user", "Do it"),)
        without, text = self._must(user, reply_head=False), self._must(user)
        head = text.removeprefix(without)
        if head == text or not head.startswith("<|im_start|>assistant\n"):
            raise ConfigError(
                f"the chat template of {self.source} asks for a reply with {text[-40:]!r}, not with <|im_start|>assistant"
            )
        return head.removeprefix("<|im_start|>")

    def demand(self, what: str, messages: tuple[Message, ...], layout: TemplateBehavior) -> None:
        if difference := self.difference(messages, layout):
            raise ConfigError(f"the chat template of {self.source} treats {what} in a way of its own: {difference}")

    def difference(self, messages: tuple[Message, ...], layout: TemplateBehavior) -> str:
        """Empty when renderer and template agree, else what differs."""
        try:
            text = self.by_template(messages)
        except (
            Exception
        ) as error:  # a template may raise anything: jinja errors, its own raise_exception, Python errors
            return f"it raises {type(error).__name__}: {str(error)[:120]}"
        want = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        got = self.render(messages, layout)
        if want == got:
            return ""
        pictures = sum(len(one.pictures) for one in messages)
        if text.count("<|image_pad|>") < pictures:
            return f"it drops {pictures - text.count('<|image_pad|>')} of {pictures} pictures"
        at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
        decode = self.tokenizer.backend_tokenizer.decode
        return (
            f"at token {at} it writes {decode(want[at : at + 8], skip_special_tokens=False)!r}, "
            f"not {decode(got[at : at + 8], skip_special_tokens=False)!r}"
        )

    def _must(self, messages: tuple[Message, ...], reply_head: bool = True) -> str:
        try:
            return self.by_template(messages, reply_head)
        except Exception as error:  # as in `difference`
            raise ConfigError(
                f"the chat template of {self.source} fails: {type(error).__name__}: {str(error)[:120]}"
            ) from None


def _content(one: Message) -> str | list[dict[str, str]]:
    if not one.pictures:
        return one.text
    return [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in one.parts]
