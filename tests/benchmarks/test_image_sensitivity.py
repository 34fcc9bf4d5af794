"""What the policy says of a place depends on the picture."""

import numpy as np
from bundled_weights import SOURCE, needs_weights

from benchmarks import image_sensitivity
from benchmarks.thresholds import Thresholds
from deskhand.models.load import load
from deskhand.recorder.graph import Sequence
from deskhand.recorder.renderer import ChatRenderer

pytestmark = needs_weights


def test_log_probs_of_coordinates_depend_on_the_image(recording):
    thresholds = Thresholds()
    image_sensitivity.judge(image_sensitivity.compare(SOURCE, recording), thresholds)
    assert thresholds.met


def test_a_row_gets_the_images_of_another_episode(recording):
    graphs = [result.graph for result in recording.results]
    for graph, donor in image_sensitivity.partners(graphs, recording.images):
        own = {span.sha256 for call in graph.calls for span in call.spans}
        for row in graph.sequences():
            swapped = image_sensitivity.swap_images(row, donor)
            assert swapped.token_ids == row.token_ids
            assert not own & {span.sha256 for span in swapped.spans}


def test_only_sampled_digits_of_coordinates_are_marked():
    tokenizer = load(SOURCE).tokenizer
    renderer = ChatRenderer(tokenizer)
    asked = tokenizer.encode('{"x":7}', add_special_tokens=False)
    reply = tokenizer.encode(
        '[{"op":"click","x":512,"y":30},{"op":"drag","path":[[1,2],[3,4]]}]', add_special_tokens=False
    )
    length = len(asked) + len(reply)
    sampled = (False,) * len(asked) + (True,) * len(reply)
    row = Sequence((*asked, *reply), sampled, (0.0,) * length, (0,) * length, (), ())
    marks = image_sensitivity.coordinate_marks(row, renderer)
    assert [renderer.token_text(token) for token, mark in zip(reply, marks, strict=True) if mark] == [
        "512",
        "30",
        *"1234",
    ]
    assert np.count_nonzero(marks) == 6
