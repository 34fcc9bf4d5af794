"""A run without the vision path: the screen in words, through agent, recorder, engine and trainer."""

import fake_desktop
import training_fixture

from deskhand.agents.text_observation import MAX_CHARS, describe_screen
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN


class Tree:
    """A desktop that tells of itself."""

    def __init__(self, tree: str | None) -> None:
        self.tree = tree

    async def accessibility_tree(self) -> str | None:
        return self.tree


async def test_screen_descriptions_are_bounded_and_never_empty():
    assert await describe_screen(Tree("<frame/>")) == "<frame/>"
    long = await describe_screen(Tree("x" * (MAX_CHARS + 1)))
    assert long == "x" * MAX_CHARS + "\n(cut here)"
    assert await describe_screen(Tree(None)) == "nothing is known of it"


async def test_a_step_is_trained_on_words_alone(tmp_path, monkeypatch):
    async def tree(self) -> str:
        return "<square color='blue'/>"

    monkeypatch.setattr(fake_desktop.PaintedDesktop, "accessibility_tree", tree, raising=False)
    async with training_fixture.assembled(tmp_path / "run", training_fixture.small(total_steps=1)) as parts:
        agent = parts.runner.agent
        agent.config = agent.config.model_copy(update={"observation": "a11y_tree"})
        await parts.loop.run()
        assert parts.trainer.steps == 1
        assert parts.engine.stats.images_encoded == 0
        trained = [row for row in parts.run.episodes(TRAIN) if row.state == "trained"]
        assert trained
        graphs = [load_result(parts.run, row.id).graph for row in trained]
        assert not [call for graph in graphs for call in graph.calls if call.spans]
        renderer = parts.recorder.renderer
        said = "".join(renderer.token_text(token) for token in graphs[0].calls[0].prompt_ids)
        assert "The screen in words:\n<square color='blue'" in said
