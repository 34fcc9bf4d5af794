"""A run's settings. Invariant: what stands here is all that can be set, and a value that cannot be meant is an error with its key.

`deskhand.config.load` reads them from a file, the environment and the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from deskhand.actions import formats
from deskhand.config.loop import LoopConfig
from deskhand.config.trainer import PolicyConfig, SupervisedConfig, TrainerConfig

MACHINE_BACKENDS = ("osworld", "waa")
"""Kinds of desktops that are machines with an address each."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RemoteTimeouts(_Section):
    """Seconds that requests to desktops elsewhere may take; time in which they wait for a quota counts in none."""

    connect_s: float = Field(default=5.0, gt=0)
    """Longest wait for a connection."""
    read_s: float = Field(default=20.0, gt=0)
    """Longest wait for an answer, besides what the operation itself may take."""
    op_s: float = Field(default=120.0, gt=10)
    """The most that one operation may take."""
    step_s: float = Field(default=300.0, gt=0)
    """The most that a step may take, with everything that is sent again."""
    episode_s: float = Field(default=3600.0, gt=0)
    """The most that an episode may take."""
    attempts: int = Field(default=6, ge=1)
    """How often a request is sent, at most."""
    pause_s: float = Field(default=0.2, gt=0)
    """Before the second attempt, and twice as long before each further one."""
    longest_pause_s: float = Field(default=10.0, gt=0)


class DesktopConfig(_Section):
    """Where desktops are. The keys from `isolation` on are of embedded ones."""

    backend: Literal["embedded", "bridge", "gateway", "osworld", "waa"] = "embedded"
    """"embedded" are on this machine; a "bridge" (`deskhand serve`) or a sandbox "gateway" has them elsewhere; "osworld" and "waa"
    are machines that run those benchmarks' servers."""
    urls: tuple[str, ...] = ()
    """Of the bridge or the gateway (left out: `OSWORLD_SANDBOX_ENDPOINT`), or of each machine."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key (bridge: `DESKHAND_SERVER_API_KEY`, gateway: `OSWORLD_SANDBOX_TOKEN`)."""
    skip_reset: bool = False
    """Take OSWorld's machines as they are: nothing brings them back to their start state."""
    qemu_monitor_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the QEMU monitor that resets a WAA machine; without it windows are closed and files removed."""
    reset_command: tuple[str, ...] = ()
    """Command of this machine, word by word, that brings an "osworld" or "waa" machine back to its start state before each episode;
    `{address}`, `{host}` and `{port}` stand for the machine's. An address that it prints is where the machine is from then on."""
    timeouts: RemoteTimeouts = RemoteTimeouts()
    isolation: Literal["best", "namespaces", "plain"] = "best"
    """"best" takes namespaces where the machine allows them."""
    settle_ms: float = Field(default=60.0, gt=0)
    """A screen without change for so long has settled."""
    settle_timeout_s: float = Field(default=2.0, gt=0)
    """Longest wait for a screen to settle."""
    prewarm: int = Field(default=1, ge=0)
    """Desktops that are started ahead."""
    memory_limit_mib: int = Field(default=4096, ge=64)
    """What the guests of one desktop may use together; beyond it the desktop is ended."""
    max_processes: int = Field(default=1024, ge=16)
    """The same for processes and threads."""
    disk_limit_mib: int = Field(default=1024, ge=16)
    """The same for the files of its home."""
    memory_request_mib: float = Field(default=160.0, gt=0)
    """What a desktop with its applications usually uses: more desktops than have room for that are refused."""

    @model_validator(mode="after")
    def _comes_back_in_one_way(self) -> DesktopConfig:
        if self.reset_command and self.backend not in MACHINE_BACKENDS:
            raise ValueError(
                f"revert is for machines of kind osworld or waa; desktops of kind {self.backend} are new for each episode"
            )
        if self.reset_command and (self.skip_reset or self.qemu_monitor_port is not None):
            raise ValueError("revert, keep_state and monitor_port exclude each other; give one")
        return self


class AgentConfig(_Section):
    """How the agent asks the model."""

    action_format: str = "deskhand_json"
    """The language of actions that the model speaks: a name of `deskhand.actions.formats`."""
    prompt_style: Literal["compact", "full"] = "compact"
    """In the compact style the model is not told how to write; it must know its language."""
    history: Literal["full", "grow_drop", "sliding"] = "grow_drop"
    history_max_turns: int = Field(default=8, ge=1)
    history_keep_turns: int = Field(default=4, ge=1)
    sliding_turns: int = Field(default=3, ge=1)
    """Turns of a sliding window."""
    dropped_turns: Literal["nothing", "replies", "steps"] = "replies"
    """What the model is told of turns that are no longer shown; replies alone are not told in the compact style."""
    on_overflow: Literal["end", "drop"] = "end"
    """When the conversation no longer fits the model: end the episode, or drop the older half of the turns that are shown."""
    max_new_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_consecutive_errors: int = Field(default=3, ge=1)
    """Replies in a row that cannot be parsed or performed before an episode ends."""
    error_feedback: bool = True
    """Whether the model is told why a reply was not performed."""
    observation: Literal["pixels", "words"] = "pixels"
    """Pictures of the screen, or its accessibility tree (where there is none: its windows) in words, for a run without the vision
    path."""
    noise_images: bool = False
    """Show the model noise in place of every screenshot: a control of what can be learnt without seeing."""

    @property
    def max_images(self) -> int:
        """Screens that one prompt can show."""
        return {"grow_drop": self.history_max_turns, "sliding": self.sliding_turns, "full": 256}[self.history]

    @field_validator("action_format")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in formats.available_formats():
            raise ValueError(f"there is no such dialect; {formats.suggest_format(name)}")
        return name


class ContextConfig(_Section):
    """What a conversation may hold, whoever serves the model."""

    max_model_len: int = Field(default=8192, ge=1)
    """Prompt and reply together; what does not fit is "overflow" (`agent.on_overflow`)."""
    rewritten_history: Literal["refuse", "keep", "fork"] = "refuse"
    """What is done about a chat template that rewrites earlier replies, as those of thinking models do: refuse it, let replies
    stand as they were sampled, or follow it (calls fork)."""


class EngineConfig(ContextConfig):
    """What serves the model to the agent."""

    backend: Literal["hf", "vllm", "sglang", "remote"] = "hf"
    """"hf" is in this process; "vllm" is a server that is started here (`python`) or runs already (`url`); "sglang" is a server at
    `url`; "remote" is any OpenAI-compatible endpoint, for evaluation only."""
    max_num_seqs: int = Field(default=16, ge=1)
    """Requests that are decoded together; a server at an address has its own limit."""
    max_num_batched_tokens: int = Field(default=8192, ge=1)
    """Padded prompt tokens in one forward pass; a longer prompt is a pass of its own."""
    prefix_cache_tokens: int = Field(default=32768, ge=0)
    """Tokens of finished requests whose keys and values are kept for requests that go on from them."""
    image_cache_tokens: int = Field(default=65536, ge=1)
    """Tokens of screenshots whose features are kept."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0, le=1)
    """Of the GPU's memory, for a vLLM that is started here; the rest is for the trainer."""
    share_weights: bool = False
    """Whether the engine samples from the trainer's own weights instead of a second copy; it pauses while they are changed."""
    base_url: str | None = None
    """Address of a server: `http://host:port`, of a remote endpoint with its path (`https://host/v1`)."""
    served_model_name: str | None = None
    """What the remote endpoint calls the model."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's key."""
    venv_python: str | None = None
    """Python of vLLM's environment; None is the one that `scripts/environment vllm` made last."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for a vLLM that is started here."""
    server_timeout_s: float = Field(default=300.0, gt=0)
    """How long a call waits for a server that is away, and the start of a run for one at `url`."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> EngineConfig:
        takes = {
            "hf": (),
            "vllm": ("base_url", "api_key_env", "venv_python", "extra_args"),
            "sglang": ("base_url", "api_key_env"),
        }
        allowed = takes.get(self.backend, ("base_url", "api_key_env", "served_model_name"))
        for key in ("base_url", "served_model_name", "api_key_env", "venv_python", "extra_args"):
            if getattr(self, key) and key not in allowed:
                raise ValueError(
                    f"{key} says nothing to an engine of kind {self.backend}; leave it out or choose another kind"
                )
        if self.share_weights and self.backend != "hf":
            raise ValueError(
                f"share_weights is for an engine of kind hf; one of kind {self.backend} has weights of its own"
            )
        if self.backend in ("sglang", "remote") and not self.base_url:
            raise ValueError(f"kind {self.backend} needs url, the address of its server")
        if self.backend == "remote" and not self.served_model_name:
            raise ValueError("kind remote needs name, what the endpoint calls the model")
        if self.base_url and (self.venv_python or self.extra_args):
            raise ValueError(
                "url is of a server that runs already; python and arguments are for one that is started here"
            )
        return self


class EvaluationConfig(_Section):
    """Held-out episodes before and after training."""

    num_episodes: int = Field(default=240, ge=0)
    """On each side, divided evenly among the families; 0 leaves evaluation out."""
    max_concurrent_episodes: int | None = Field(default=None, ge=1)
    """Episodes at a time; None is as in training."""
    temperature: float = Field(default=1.0, ge=0)
    save_end_states: bool = False
    """Keep what each episode was judged on, in the run's folder end_states, for `deskhand rejudge`."""


class SuiteConfig(_Section):
    """Which tasks: a suite in the box by its name alone (`suite: miniwob`), or the task files of a folder
    (`suite: {osworld: ../OSWorld}`)."""

    plain: ClassVar[str] = "name"
    displaces: ClassVar[tuple[str, ...]] = ("name", "osworld", "waa", "native", "openadapt", "python")

    name: Literal["basics", "miniwob"] | None = None
    families: tuple[str, ...] = ()
    """Task families (those of MiniWoB++ as "miniwob/click-button"), of files the tasks or their folders; none named is all of the
    suite, of basics `tasks.suites.catalogue.DEFAULT`."""
    exclude: tuple[str, ...] = ()
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
    eval_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the files that is not trained on; evaluation plays these, or all where nothing is held out."""
    screen_size: tuple[int, int] | None = None
    """Width and height in pixels; None is what the benchmark's own machines have."""
    max_episode_steps: int | None = Field(default=None, ge=2)
    """Of an episode; None is what the file says, or the benchmark."""
    include_infeasible: bool = True
    """Whether those of OSWorld's tasks are played that are solved by saying that they cannot be done."""
    evaluator_port: int = Field(default=5050, ge=1, le=65535)
    """Of WAA's evaluate server, on the host of each machine."""

    @model_validator(mode="after")
    def _is_one(self) -> SuiteConfig:
        if self.name is not None and self.files is not None:
            raise ValueError(f"name and {self.files[0]} exclude each other; give one")
        if sum(getattr(self, key) is not None for key in self.displaces[1:]) > 1:
            raise ValueError(f"give one of {', '.join(self.displaces[1:])}")
        if (self.files is None or self.python is not None) and (
            self.eval_fraction or self.screen_size or self.max_episode_steps
        ):
            raise ValueError("held_out, screen and max_steps are for task files; give their folder")
        return self

    @property
    def files(self) -> tuple[str, Path] | None:
        """Whose task files, and their folder; None for a suite in the box."""
        found = [(key, path) for key in self.displaces[1:] if (path := getattr(self, key)) is not None]
        return found[0] if found else None


class TrackingConfig(_Section):
    """Where metrics go besides the run folder."""

    wandb: bool = False
    """Weights & Biases; it needs the package wandb and its login."""
    wandb_project: str = "deskhand"


class Config(_Section):
    """Everything that a run is made from."""

    model: str = "tiny"
    """"tiny" (in the box), a checkpoint folder, or a name on the Hugging Face hub."""
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device_memory_gib: float | None = Field(default=None, gt=0)
    """Of the device, for the plan that a run must fit into; None is what this machine's device has."""
    suite: SuiteConfig = SuiteConfig()
    seed: int = Field(default=0, ge=0, lt=100)
    """Which training tasks are met; the held-out tasks are always the same."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Training ends after so many minutes, with the step that is being taken; None is when all steps are done."""
    desktop: DesktopConfig = DesktopConfig()
    agent: AgentConfig = AgentConfig()
    engine: EngineConfig = EngineConfig()
    loop: LoopConfig = LoopConfig()
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    sft: SupervisedConfig = Field(default_factory=SupervisedConfig)
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def eval_agent(self) -> AgentConfig:
        """The agent of evaluations, which have a temperature of their own."""
        return self.agent.model_copy(update={"temperature": self.evaluation.temperature})

    @property
    def training_error(self) -> str | None:
        """Why nothing can be trained with these settings; None when it can."""
        if self.engine.backend == "remote":
            return "engine.backend remote is for evaluation only: nobody knows which ids it samples; train with hf, vllm or sglang"
        if self.agent.temperature == 0:
            return (
                "agent.temperature 0 plays all members of a group alike, so there is nothing to compare; train with a temperature "
                "above 0 (evaluation.temperature may be 0)"
            )
        if self.dtype == "float16":
            return "dtype float16 makes 0 of gradients as small as those of long episodes; train with bfloat16, which is as small"
        if self.engine.backend == "vllm" and self.agent.top_p < 1:
            return "agent.top_p below 1 makes vLLM's log-probs those of what it left; train with agent.top_p 1, or engine.backend hf"
        return None
