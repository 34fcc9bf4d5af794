"""An agent with a prompt of its own. Run: python examples/own_agent.py runs/own-agent
In a config: agent: {class: "examples/own_agent.py:PlainAgent", options: {style: polite}}"""

import sys

import deskhand as dh

PROMPTS = {"polite": "Please: {0}", "terse": "{0}"}


class PlainAgent(dh.Agent):
    def __init__(self, style: str = "terse") -> None:
        self.prompt, self.format = PROMPTS[style], dh.action_format("deskhand_json")

    async def run(self, episode: dh.EpisodeContext) -> None:
        frame = await episode.observe()
        while not episode.done:
            image = {"type": "image_url", "image_url": {"url": await episode.image_url(frame)}}
            text = {"type": "text", "text": self.prompt.format(episode.instruction)}
            messages = [{"role": "user", "content": [image, text]}]
            answer = await episode.complete(messages)
            try:
                frame = await episode.act(self.format.parse(answer, episode.view), reply=answer)
            except dh.AgentError as error:
                episode.reject(answer, error)


if __name__ == "__main__":
    tasks = dh.load_tasks("basics", split="test", families=["terminal_run"], count=2)
    print(dh.evaluate("tiny", tasks=tasks, run_dir=sys.argv[1], agent=PlainAgent).success)
