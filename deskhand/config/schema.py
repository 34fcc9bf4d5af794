"""Settings of a run: the sections of `Config`, with defaults and validation.

`deskhand.config.load` fills them from a file, the environment and the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from deskhand import registry
from deskhand.config.loop import LoopConfig
from deskhand.config.trainer import PolicyConfig, Section, SupervisedConfig, TrainerConfig, reference_to

MACHINE_BACKENDS = ("osworld", "waa")
"""Desktop backends with one URL per machine."""
CONTEXT_SCREENSHOTS = 256
"""Maximum screenshots in a prompt with the full history."""


class RemoteTimeouts(Section):
    """Timeouts and retries of requests to remote desktops. Waiting for a quota does not count."""

    connect_s: float = Field(default=5.0, gt=0)
    """Timeout of a connection."""
    read_s: float = Field(default=20.0, gt=0)
    """Timeout of a response, in addition to the duration of the operation."""
    op_s: float = Field(default=120.0, gt=10)
    """Timeout of an operation."""
    step_s: float = Field(default=300.0, gt=0)
    """Timeout of a step, including retries."""
    episode_s: float = Field(default=3600.0, gt=0)
    """Timeout of an episode."""
    max_attempts: int = Field(default=6, ge=1)
    """Maximum attempts per request."""
    initial_backoff_s: float = Field(default=0.2, gt=0)
    """Pause before the second attempt; it doubles before each further one."""
    max_backoff_s: float = Field(default=10.0, gt=0)
    """Maximum pause between two attempts."""


class DesktopConfig(Section):
    """Desktops. The keys from `isolation` on apply to local desktops."""

    backend: Annotated[str, reference_to("desktop")] = "local"
    """"local" desktops run on this machine, "server" ones on a desktop server (`deskhand serve desktops`), "sandbox"
    ones behind a sandbox gateway; "osworld" and "waa" are machines with those benchmarks' servers."""
    urls: tuple[str, ...] = ()
    """URL of the server or gateway (default for "sandbox": `OSWORLD_SANDBOX_ENDPOINT`), or one URL per machine."""
    api_key_env: str | None = None
    """Environment variable with the API key (default: `DESKHAND_SERVER_API_KEY` for "server", `OSWORLD_SANDBOX_TOKEN`
    for "sandbox")."""
    skip_reset: bool = False
    """Use "osworld" machines without resetting them."""
    qemu_monitor_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the QEMU monitor that resets a "waa" machine; without it, windows are closed and files removed."""
    reset_command: tuple[str, ...] = ()
    """Local command and arguments that reset an "osworld" or "waa" machine before each episode. `{address}`, `{host}`
    and `{port}` are replaced by the machine's; a URL that it prints becomes the machine's URL."""
    timeouts: RemoteTimeouts = RemoteTimeouts()
    isolation: Literal["best", "namespaces", "plain"] = "best"
    """Isolation of guests; "best" uses namespaces where the machine allows them."""
    settle_ms: float = Field(default=60.0, gt=0)
    """Duration without a change after which the screen has settled."""
    settle_timeout_s: float = Field(default=2.0, gt=0)
    """Maximum wait for the screen to settle."""
    prewarm: int = Field(default=1, ge=0)
    """Desktops started in advance."""
    num_judging: int | None = Field(default=None, ge=0)
    """Desktops beyond the concurrent episodes, for episodes that are being judged: another episode starts meanwhile.
    None is half as many as concurrent episodes for local desktops that fit on the machine, 0 for other backends."""
    memory_limit_mib: int = Field(default=4096, ge=64)
    """Maximum memory of a desktop's guest processes; beyond it the desktop is closed."""
    max_processes: int = Field(default=1024, ge=16)
    """Maximum number of guest processes and threads."""
    disk_limit_mib: int = Field(default=1024, ge=16)
    """Maximum size of the guest's home directory."""
    memory_request_mib: float = Field(default=160.0, gt=0)
    """Expected memory of a desktop, which limits how many may run."""

    @model_validator(mode="after")
    def _has_one_reset(self) -> DesktopConfig:
        if self.reset_command and self.backend not in MACHINE_BACKENDS:
            raise ValueError(
                f"desktop.reset_command is not used by backend {self.backend}, whose desktops are always new; remove it"
            )
        if self.reset_command and (self.skip_reset or self.qemu_monitor_port is not None):
            raise ValueError(
                "desktop.reset_command, skip_reset and qemu_monitor_port are mutually exclusive; keep one of them"
            )
        return self


class AgentConfig(Section):
    """Prompts, context and sampling of the agent.

    Of `action_format`, `prompt_style` and `max_new_tokens`, those that are not set fit the model
    (`deskhand.recipes.model_defaults`); the defaults here are those of the bundled policy.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    class_: Annotated[str, reference_to("agent")] = Field(default="desktop", alias="class")
    """"desktop" is Deskhand's agent; or the import path of your own (`my_agent.py:MyAgent`,
    `my_package.agents:MyAgent`)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of an agent of your own."""
    action_format: Annotated[str, reference_to("action_format")] = "deskhand_json"
    """Action format of the model's replies: a name of `deskhand.actions.formats`."""
    prompt_style: Literal["compact", "full"] = "compact"
    """"full" describes the action format in the prompt; "compact" expects a model that knows it."""
    history: Literal["full", "chunked", "sliding"] = "chunked"
    """Turns in the prompt: all of them, up to `history_max_turns` and then `history_keep_turns`, or the last
    `sliding_turns`."""
    history_max_turns: int = Field(default=8, ge=1)
    """Maximum turns of the chunked history."""
    history_keep_turns: int = Field(default=4, ge=1)
    """Turns kept when the chunked history reaches its maximum."""
    sliding_turns: int = Field(default=3, ge=1)
    """Turns of the sliding history."""
    dropped_turns: Literal["nothing", "replies", "steps"] = "replies"
    """Summary of dropped turns in the prompt; the compact style has no summary of replies alone."""
    on_overflow: Literal["stop", "truncate"] = "stop"
    """When the conversation exceeds the context: stop the episode, or drop the older half of the turns."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Maximum tokens of a reply."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature in training; evaluations use `evaluation.temperature`."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling threshold."""
    max_consecutive_errors: int = Field(default=3, ge=1)
    """Consecutive replies that cannot be parsed or executed before an episode ends."""
    error_feedback: bool = True
    """Include the reason for a rejected reply in the next prompt."""
    observation: Literal["screenshot", "a11y_tree"] = "screenshot"
    """Screenshots, or the accessibility tree as text (window titles where there is none)."""
    max_pixels: int | None = Field(default=None, ge=1)
    """Maximum width x height of a screenshot as the model sees it, like `max_pixels` of Qwen's image processors. Larger
    ones are scaled down before they are sent and recorded; actions are scaled up to the desktop. None is the model's
    own maximum."""
    noise_images: bool = False
    """Replace every screenshot by noise, to measure what can be learned without images."""

    @property
    def max_images(self) -> int:
        """Maximum screenshots in one prompt."""
        turns = {"chunked": self.history_max_turns, "sliding": self.sliding_turns, "full": CONTEXT_SCREENSHOTS}
        return turns[self.history]

    @model_validator(mode="after")
    def _has_options_of_its_own(self) -> AgentConfig:
        if self.options and self.class_ == "desktop":
            raise ValueError("options are for an agent of your own; set class to its import path")
        return self


class ContextConfig(Section):
    """Context of a conversation, common to all engine backends."""

    max_model_len: int = Field(default=8192, ge=1)
    """Maximum tokens of prompt and reply; `agent.on_overflow` decides what happens beyond."""
    rewritten_history: Literal["error", "preserve", "fork"] = "error"
    """Chat templates that rewrite earlier replies (as those of thinking models do): raise an error, preserve the
    replies as sampled, or follow the template and fork the call graph."""


class EngineConfig(ContextConfig):
    """Inference engine."""

    backend: Annotated[str, reference_to("engine")] = "hf"
    """"hf" runs in this process; "vllm" is launched here or runs at `base_url`; "sglang" runs at `base_url`; "openai"
    is any OpenAI-compatible endpoint, for evaluation only."""
    max_num_seqs: int = Field(default=16, ge=1)
    """Maximum concurrent requests of an engine launched here."""
    max_num_batched_tokens: int = Field(default=8192, ge=1)
    """Maximum prompt tokens between two decoding steps (backend hf); a longer prompt is computed in chunks."""
    prefix_cache_tokens: int = Field(default=32768, ge=0)
    """Tokens of finished requests whose keys and values are cached."""
    image_cache_tokens: int = Field(default=65536, ge=1)
    """Tokens of screenshots whose features are cached."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0, le=1)
    """Fraction of the GPU memory for a vLLM launched here; the trainer uses the rest."""
    share_weights: bool = False
    """Sample from the trainer's weights instead of a second copy (backend hf); the engine pauses during updates."""
    base_url: str | None = None
    """URL of a running server: `http://host:port`, or `https://host/v1` for backend openai."""
    served_model_name: str | None = None
    """Model name at the endpoint (backend openai)."""
    api_key_env: str | None = None
    """Environment variable with the server's API key."""
    venv_python: str | None = None
    """Python interpreter with vLLM; None is the latest from `scripts/environment vllm`."""
    extra_args: tuple[str, ...] = ()
    """Additional arguments for a vLLM launched here."""
    server_timeout_s: float = Field(default=300.0, gt=0)
    """Maximum wait for an unreachable server, during a call or at the start of a run."""

    @model_validator(mode="after")
    def _matches_backend(self) -> EngineConfig:
        used = {
            "hf": (),
            "vllm": ("base_url", "api_key_env", "venv_python", "extra_args"),
            "sglang": ("base_url", "api_key_env"),
            "openai": ("base_url", "api_key_env", "served_model_name"),
        }
        if not registry.is_builtin("engine", self.backend):
            return self
        for key in ("base_url", "served_model_name", "api_key_env", "venv_python", "extra_args"):
            if getattr(self, key) and key not in used[self.backend]:
                raise ValueError(f"engine.{key} is not used by backend {self.backend}; remove it")
        if self.share_weights and self.backend != "hf":
            raise ValueError(f"engine.share_weights requires backend hf, got {self.backend}; remove it")
        if self.backend in ("sglang", "openai") and not self.base_url:
            raise ValueError(f"engine.base_url is required by backend {self.backend}; set it to the server's URL")
        if self.backend == "openai" and not self.served_model_name:
            raise ValueError("engine.served_model_name is required by backend openai; set it to the endpoint's name")
        if self.base_url and (self.venv_python or self.extra_args):
            raise ValueError("engine.venv_python and extra_args are for a server launched here; remove engine.base_url")
        return self


class EvaluationConfig(Section):
    """Evaluation before and after training, by default on tasks that are never trained on."""

    split: Literal["test", "validation", "test_instructions", "train"] = "test"
    """Tasks to evaluate on: held-out tasks; those that select the best checkpoint; held-out tasks with instructions
    that training never uses; or the training tasks themselves."""
    num_episodes: int = Field(default=240, ge=0)
    """Episodes per evaluation, divided evenly among the families; 0 disables evaluation."""
    max_concurrent_episodes: int | None = Field(default=None, ge=1)
    """Concurrent episodes; None is `loop.max_concurrent_episodes`."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature."""
    save_end_states: bool = False
    """Save scored end states to `end_states/` in the run directory, for `deskhand rescore`."""


class SuiteConfig(Section):
    """Tasks: a bundled suite by its name (`suite: miniwob`), or task files (`suite: {format: osworld, path:
    ../OSWorld}`)."""

    plain: ClassVar[str] = "name"
    displaces: ClassVar[tuple[str, ...]] = ("name", "format")

    name: Annotated[str, reference_to("suite")] | None = None
    """Suite: basics (the default), web, miniwob, or the import path of task families of your own."""
    format: Literal["osworld", "waa", "cuagym", "deskhand", "openadapt", "python"] | None = None
    """Format of the task files: OSWorld's or Windows Agent Arena's JSON, CUA-Gym's bundles, Deskhand's or OpenAdapt's
    YAML, or a Python file with functions decorated by `deskhand.task_family`."""
    path: Path | None = None
    """Folder of the task files (for OSWorld and Windows Agent Arena also a checkout), or the Python file."""
    families: tuple[str, ...] = ()
    """Task families to use: family names, or of task files their names or folders. Empty means all, and for basics its
    default selection."""
    exclude: tuple[str, ...] = ()
    """Tasks, families or folders to skip, named as in `families`."""
    held_out_families: tuple[str, ...] = ()
    """Families, or applications with all of their families, that are never trained on: the test split has only these.
    Empty means that the splits have the same families and differ by seeds."""
    eval_fraction: float | None = Field(default=None, ge=0, lt=1)
    """Fraction of the task files in the test split, which is never trained on. None is 0.2 for a training run that
    evaluates, and no split otherwise: `deskhand eval` of a model then plays all files."""
    validation_fraction: float | None = Field(default=None, ge=0, lt=1)
    """Fraction of the task files in the validation split, which selects the best checkpoint. None is 0.1 for a training
    run with `loop.eval_every`."""
    screen_size: tuple[int, int] | None = None
    """Screen width and height in pixels; None is the size of the benchmark's own machines."""
    max_episode_steps: int | None = Field(default=None, ge=2)
    """Maximum steps per episode; None is the task's or the benchmark's."""
    include_infeasible: bool = True
    """Include OSWorld tasks whose correct answer is that they are infeasible."""
    evaluator_port: int = Field(default=5050, ge=1, le=65535)
    """Port of WAA's evaluate server on each machine. A desktop server has its own setting (`--evaluator-port`)."""
    allow_python_checks: bool = False
    """Run the code of `python` checks in OpenAdapt's files, and CUA-Gym's programs, on this machine, in a process with
    limits."""

    @model_validator(mode="after")
    def _names_one_source(self) -> SuiteConfig:
        if self.name is not None and self.format is not None:
            raise ValueError("suite.name and suite.format are mutually exclusive; keep one of them")
        if (self.format is None) != (self.path is None):
            missing = "path" if self.path is None else "format"
            raise ValueError(f"suite.{missing} is missing; set suite.format and suite.path together")
        if (self.format is None or self.format == "python") and (
            self.eval_fraction or self.validation_fraction or self.screen_size
        ):
            raise ValueError("suite.eval_fraction, validation_fraction and screen_size are for task files; remove them")
        return self


class TrackingConfig(Section):
    """Metrics outside the run directory."""

    wandb: bool = False
    """Log to Weights & Biases (requires the package wandb and a login)."""
    wandb_project: str = "deskhand"
    """Weights & Biases project."""
    scrub: bool = False
    """Replace keys, tokens, passwords and addresses in the texts of stored episodes, not in screenshots."""
    scrub_patterns: tuple[str, ...] = ()
    """Further regular expressions of what `scrub` replaces."""
    scrub_env: tuple[str, ...] = ()
    """Environment variables whose values `scrub` replaces."""

    @property
    def scrubbed(self) -> dict[str, Any] | None:
        """What the run's metadata say about scrubbing."""
        return {"patterns": self.scrub_patterns, "variables": self.scrub_env} if self.scrub else None


class Config(Section):
    """All settings of a run."""

    model: str = "tiny"
    """"tiny" (bundled), a checkpoint folder, or a Hugging Face hub name."""
    device: str = "cpu"
    """Torch device."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the weights."""
    device_memory_gib: float | None = Field(default=None, gt=0)
    """Device memory that the estimate must fit into; None is what the driver reports."""
    suite: SuiteConfig = SuiteConfig()
    seed: int = Field(default=0, ge=0, lt=100)
    """Selects the training tasks; held-out tasks are always the same."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Maximum duration of training, which ends after the current step; None trains all steps."""
    desktop: DesktopConfig = DesktopConfig()
    agent: AgentConfig = AgentConfig()
    reward: Annotated[str, reference_to("reward")] | None = None
    """Import path of a function from a judged episode to its reward (`my_rewards.py:shorter`); None is the judge's
    reward."""
    engine: EngineConfig = EngineConfig()
    loop: LoopConfig = LoopConfig()
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    sft: SupervisedConfig = Field(default_factory=SupervisedConfig)
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def eval_agent(self) -> AgentConfig:
        """The agent with the temperature of evaluations."""
        return self.agent.model_copy(update={"temperature": self.evaluation.temperature})

    @property
    def training_error(self) -> str | None:
        """Why these settings cannot train; None if they can."""
        if self.engine.backend == "openai":
            return "engine.backend openai cannot be trained: token ids are unknown; use hf, vllm or sglang"
        if self.agent.temperature == 0:
            return (
                "agent.temperature 0 makes all episodes of a group identical, so every advantage is zero; use a "
                "temperature above 0"
            )
        if self.dtype == "float16":
            return "dtype float16 underflows the small gradients of long episodes; use bfloat16 (same memory)"
        if self.trainer.optimizer_offload and self.device == "cpu":
            return "trainer.optimizer_offload saves memory of a GPU, but device is cpu; remove it"
        teacher = self.trainer.distillation
        if teacher is not None and teacher.is_served and self.agent.temperature != 1:
            return (
                "trainer.distillation.teacher: a server's log-probs are those of temperature 1; set agent.temperature "
                "to 1, or load the teacher from a checkpoint"
            )
        if self.agent.top_p < 1:
            return (
                "agent.top_p < 1 samples from fewer tokens than the log-probs are over, so no reply could be trained "
                "on; set it to 1"
            )
        return None
