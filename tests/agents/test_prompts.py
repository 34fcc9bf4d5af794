"""Messages are exactly these."""

from hypothesis import given
from hypothesis import strategies as st

from deskhand.agents.prompts import Turn, build_messages, png_data_uri


def user(url: str, text: str) -> dict:
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
    }


def test_compact_messages_repeat_the_instruction_and_tell_the_error():
    turns = [Turn("data:1", "nonsense"), Turn("data:2", '{"op":"done"}', "not JSON"), Turn("data:3")]
    assert build_messages("compact", "Do it", turns, prompt="unused") == [
        user("data:1", "Do it"),
        {"role": "assistant", "content": "nonsense"},
        user("data:2", "Do it\nerror: not JSON"),
        {"role": "assistant", "content": '{"op":"done"}'},
        user("data:3", "Do it"),
    ]


def test_full_messages_open_with_the_prompt_and_the_instruction_and_keep_dropped_replies():
    made = build_messages("full", "Do it", [Turn("data:2", "b"), Turn("data:3")], prompt="the prompt", earlier=["1. a"])
    assert made[0] == {"role": "system", "content": "the prompt"}
    assert made[1] == user("data:2", "Do it\nReplies so far:\n1. a")
    assert made[3] == user("data:3", "The screen now.")


@given(
    st.lists(st.tuples(st.text(), st.none() | st.text()), min_size=1, max_size=6), st.sampled_from(["compact", "full"])
)
def test_one_more_turn_only_adds_messages(pairs, style):
    turns = [Turn(f"data:{index}", reply, error) for index, (reply, error) in enumerate(pairs)]
    longer = build_messages(style, "Do it", [*turns, Turn("data:new")], prompt="p")
    assert longer[: len(longer) - 1] == build_messages(style, "Do it", turns, prompt="p")


def test_image_is_a_data_uri():
    assert png_data_uri(b"\x89PNG") == "data:image/png;base64,iVBORw=="
