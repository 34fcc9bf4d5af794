"""A run's settings. Invariant: what stands here is all that can be set, and a value that cannot be meant is an error with its key.

`deskhand.config` reads them from a file, the environment and the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from deskhand.actions import dialects
from deskhand.rollout.config import LoopConfig
from deskhand.training.config import PolicyConfig, SupervisedConfig, TrainerConfig

MACHINES = ("osworld", "waa")
"""Kinds of desktops that are machines with an address each."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DesktopSection(_Section):
    """Where desktops are. All but the first keys, up to `episode_s`, are of embedded ones."""

    kind: Literal["embedded", "bridge", "gateway", "osworld", "waa"] = "embedded"
    """"embedded" are on this machine; a "bridge" (`deskhand serve`) or a sandbox "gateway" has them elsewhere; "osworld" and "waa"
    are machines that run those benchmarks' servers."""
    addresses: tuple[str, ...] = ()
    """Of the bridge or the gateway (left out: `OSWORLD_SANDBOX_ENDPOINT`), or of each machine."""
    key_variable: str | None = None
    """Name of the environment variable that holds the key (bridge: `DESKHAND_BRIDGE_KEY`, gateway: `OSWORLD_SANDBOX_TOKEN`)."""
    keep_state: bool = False
    """Take OSWorld's machines as they are: nothing brings them back to their start state."""
    monitor_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the QEMU monitor that resets a WAA machine; without it windows are closed and files removed."""
    revert: tuple[str, ...] = ()
    """Command of this machine, word by word, that brings an "osworld" or "waa" machine back to its start state before each episode;
    `{address}`, `{host}` and `{port}` stand for the machine's. An address that it prints is where the machine is from then on."""
    connect_s: float = Field(default=5.0, gt=0)
    """Longest wait for a connection."""
    read_s: float = Field(default=20.0, gt=0)
    """Longest wait for an answer, besides what the operation itself may take."""
    op_s: float = Field(default=120.0, gt=10)
    """The most that one operation may take."""
    step_s: float = Field(default=300.0, gt=0)
    """The most that a step may take, with everything that is sent again."""
    episode_s: float = Field(default=3600.0, gt=0)
    """The most that an episode may take. Time that is parked counts in none of these."""
    isolation: Literal["best", "namespaces", "plain"] = "best"
    """"best" takes namespaces where the machine allows them."""
    quiet_ms: float = Field(default=60.0, gt=0)
    """A screen without change for so long has settled."""
    cap_s: float = Field(default=2.0, gt=0)
    """Longest wait for a screen to settle."""
    spares: int = Field(default=1, ge=0)
    """Desktops that are started ahead."""
    memory_mib: int = Field(default=4096, ge=64)
    """What the guests of one desktop may use together; beyond it the desktop is ended."""
    processes: int = Field(default=1024, ge=16)
    """The same for processes and threads."""
    disk_mib: int = Field(default=1024, ge=16)
    """The same for the files of its home."""
    expected_mib: float = Field(default=160.0, gt=0)
    """What a desktop with its applications usually uses: more desktops than have room for that are refused."""

    @model_validator(mode="after")
    def _comes_back_in_one_way(self) -> DesktopSection:
        if self.revert and self.kind not in MACHINES:
            raise ValueError(
                f"revert is for machines of kind osworld or waa; desktops of kind {self.kind} are new for each episode"
            )
        if self.revert and (self.keep_state or self.monitor_port is not None):
            raise ValueError("revert, keep_state and monitor_port exclude each other; give one")
        return self


class AgentSection(_Section):
    """How the agent asks the model."""

    dialect: str = "deskhand_json"
    """The language of actions that the model speaks: a name of `deskhand.actions.dialects`."""
    style: Literal["compact", "full"] = "compact"
    """In the compact style the model is not told how to write; it must know its language."""
    window: Literal["full", "grow_drop", "sliding"] = "grow_drop"
    grow_to: int = Field(default=8, ge=1)
    drop_to: int = Field(default=4, ge=1)
    keep: int = Field(default=3, ge=1)
    """Turns of a sliding window."""
    dropped: Literal["nothing", "replies", "steps"] = "replies"
    """What the model is told of turns that are no longer shown; replies alone are not told in the compact style."""
    overflow: Literal["end", "drop"] = "end"
    """When the conversation no longer fits the model: end the episode, or drop the older half of the turns that are shown."""
    max_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_errors: int = Field(default=3, ge=1)
    """Replies in a row that cannot be parsed or performed before an episode ends."""
    tell_errors: bool = True
    """Whether the model is told why a reply was not performed."""
    screen: Literal["pixels", "words"] = "pixels"
    """Pictures of the screen, or its accessibility tree (where there is none: its windows) in words, for a run without the vision
    path."""
    blind: bool = False
    """Show the model noise in place of every screenshot: a control of what can be learnt without seeing."""

    @field_validator("dialect")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in dialects.names():
            raise ValueError(f"there is no such dialect; {dialects.mend(name)}")
        return name


class EngineSection(_Section):
    """What serves the model to the agent."""

    kind: Literal["hf", "vllm", "sglang", "remote"] = "hf"
    """"hf" is in this process; "vllm" is a server that is started here (`python`) or runs already (`url`); "sglang" is a server at
    `url`; "remote" is any OpenAI-compatible endpoint, for evaluation only."""
    max_batch: int = Field(default=16, ge=1)
    """Requests that are decoded together; a server at an address has its own limit."""
    max_tokens: int = Field(default=8192, ge=1)
    """Prompt and reply together; what does not fit is "overflow" (`agent.overflow`)."""
    history: Literal["refuse", "keep", "fork"] = "refuse"
    """What is done about a chat template that rewrites earlier replies, as those of thinking models do: refuse it, let replies
    stand as they were sampled, or follow it (calls fork)."""
    prefill_tokens: int = Field(default=8192, ge=1)
    """Padded prompt tokens in one forward pass; a longer prompt is a pass of its own."""
    parked_tokens: int = Field(default=32768, ge=0)
    """Tokens of finished requests whose keys and values are kept for requests that go on from them."""
    image_tokens: int = Field(default=65536, ge=1)
    """Tokens of screenshots whose features are kept."""
    memory_share: float = Field(default=0.4, gt=0, le=1)
    """Of the GPU's memory, for a vLLM that is started here; the rest is for the trainer."""
    share_weights: bool = False
    """Whether the engine samples from the trainer's own weights instead of a second copy; it pauses while they are changed."""
    url: str | None = None
    """Address of a server: `http://host:port`, of a remote endpoint with its path (`https://host/v1`)."""
    name: str | None = None
    """What the remote endpoint calls the model."""
    key_variable: str | None = None
    """Name of the environment variable that holds the server's key."""
    python: str | None = None
    """Python of vLLM's environment; None is the one that `scripts/environment vllm` made last."""
    arguments: tuple[str, ...] = ()
    """Further arguments for a vLLM that is started here."""
    patience_s: float = Field(default=300.0, gt=0)
    """How long a call waits for a server that is away, and the start of a run for one at `url`."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> EngineSection:
        takes = {"hf": (), "vllm": ("url", "key_variable", "python", "arguments"), "sglang": ("url", "key_variable")}
        allowed = takes.get(self.kind, ("url", "key_variable", "name"))
        for key in ("url", "name", "key_variable", "python", "arguments"):
            if getattr(self, key) and key not in allowed:
                raise ValueError(f"{key} says nothing to an engine of kind {self.kind}; leave it out or choose another kind")
        if self.share_weights and self.kind != "hf":
            raise ValueError(f"share_weights is for an engine of kind hf; one of kind {self.kind} has weights of its own")
        if self.kind in ("sglang", "remote") and not self.url:
            raise ValueError(f"kind {self.kind} needs url, the address of its server")
        if self.kind == "remote" and not self.name:
            raise ValueError("kind remote needs name, what the endpoint calls the model")
        if self.url and (self.python or self.arguments):
            raise ValueError("url is of a server that runs already; python and arguments are for one that is started here")
        return self


class EvaluationSection(_Section):
    """Held-out episodes before and after training."""

    episodes: int = Field(default=240, ge=0)
    """On each side, divided evenly among the families; 0 leaves evaluation out."""
    desktops: int | None = Field(default=None, ge=1)
    """Episodes at a time; None is as in training."""
    temperature: float = Field(default=1.0, ge=0)
    end_states: bool = False
    """Keep what each episode was judged on, in the run's folder end_states, for `deskhand rejudge`."""


class SuiteSection(_Section):
    """Which tasks: a suite in the box by its name alone (`suite: miniwob`), or the task files of a folder
    (`suite: {osworld: ../OSWorld}`)."""

    plain: ClassVar[str] = "name"
    displaces: ClassVar[tuple[str, ...]] = ("name", "osworld", "waa", "native", "openadapt", "python")

    name: Literal["basics", "miniwob"] | None = None
    families: tuple[str, ...] = ()
    """Task families (those of MiniWoB++ as "miniwob/click-button"), of files the tasks or their folders; none named is all of the
    suite, of basics `tasks.suites.catalogue.DEFAULT`."""
    without: tuple[str, ...] = ()
    """Tasks, families or folders of them that are not played, named as under `families`."""
    osworld: Path | None = None
    """A checkout of OSWorld, or a folder with its task files."""
    waa: Path | None = None
    """The same of Windows Agent Arena."""
    native: Path | None = None
    """Tasks in Deskhand's YAML."""
    openadapt: Path | None = None
    """Tasks in OpenAdapt's YAML."""
    python: Path | None = None
    """A Python file with `FAMILIES`, a sequence of `tasks.task.Family`, whose variants differ as those of basics do."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the files that is not trained on; evaluation plays these, or all where nothing is held out."""
    screen: tuple[int, int] | None = None
    """Width and height in pixels; None is what the benchmark's own machines have."""
    max_steps: int | None = Field(default=None, ge=2)
    """Of an episode; None is what the file says, or the benchmark."""
    infeasible: bool = True
    """Whether those of OSWorld's tasks are played that are solved by saying that they cannot be done."""
    evaluate_port: int = Field(default=5050, ge=1, le=65535)
    """Of WAA's evaluate server, on the host of each machine."""

    @model_validator(mode="after")
    def _is_one(self) -> SuiteSection:
        if self.name is not None and self.files is not None:
            raise ValueError(f"name and {self.files[0]} exclude each other; give one")
        if sum(getattr(self, key) is not None for key in self.displaces[1:]) > 1:
            raise ValueError(f"give one of {', '.join(self.displaces[1:])}")
        if (self.files is None or self.python is not None) and (self.held_out or self.screen or self.max_steps):
            raise ValueError("held_out, screen and max_steps are for task files; give their folder")
        return self

    @property
    def files(self) -> tuple[str, Path] | None:
        """Whose task files, and their folder; None for a suite in the box."""
        found = [(key, path) for key in self.displaces[1:] if (path := getattr(self, key)) is not None]
        return found[0] if found else None


class TrackingSection(_Section):
    """Where metrics go besides the run folder."""

    wandb: bool = False
    """Weights & Biases; it needs the package wandb and its login."""
    project: str = "deskhand"


class Config(_Section):
    """Everything that a run is made from."""

    model: str = "tiny"
    """"tiny" (in the box), a checkpoint folder, or a name on the Hugging Face hub."""
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    memory_gib: float | None = Field(default=None, gt=0)
    """Of the device, for the plan that a run must fit into; None is what this machine's device has."""
    suite: SuiteSection = SuiteSection()
    families: tuple[str, ...] = ()
    """Where some are named they take the place of `suite.families`."""
    seed: int = Field(default=0, ge=0, lt=100)
    """Which training tasks are met; the held-out tasks are always the same."""
    minutes: float | None = Field(default=None, gt=0)
    """Training ends after so many minutes, with the step that is being taken; None is when all steps are done."""
    desktop: DesktopSection = DesktopSection()
    agent: AgentSection = AgentSection()
    engine: EngineSection = EngineSection()
    loop: LoopConfig = LoopConfig()
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    sft: SupervisedConfig = Field(default_factory=SupervisedConfig)
    evaluation: EvaluationSection = EvaluationSection()
    tracking: TrackingSection = TrackingSection()

    @property
    def untrainable(self) -> str | None:
        """Why nothing can be trained with these settings; None when it can."""
        if self.engine.kind == "remote":
            return "engine.kind remote is for evaluation only: nobody knows which ids it samples; train with hf, vllm or sglang"
        if self.agent.temperature == 0:
            return (
                "agent.temperature 0 plays all members of a group alike, so there is nothing to compare; train with a temperature "
                "above 0 (evaluation.temperature may be 0)"
            )
        if self.dtype == "float16":
            return "dtype float16 makes 0 of gradients as small as those of long episodes; train with bfloat16, which is as small"
        if self.engine.kind == "vllm" and self.agent.top_p < 1:
            return "agent.top_p below 1 makes vLLM's log-probs those of what it left; train with agent.top_p 1, or engine.kind hf"
        return None
