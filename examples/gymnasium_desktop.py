"""A random policy on two desktops with Gymnasium. Run: python examples/gymnasium_desktop.py 20
Needs Gymnasium: pip install 'deskhand[gymnasium]'"""

import sys

import gymnasium  # pyright: ignore[reportMissingImports]

import deskhand.integrations.gymnasium  # noqa: F401 - registers Deskhand-v0

if __name__ == "__main__":
    settings = {"overrides": ["suite.families=[terminal_run]"], "on_outage": "truncate"}
    envs = gymnasium.make_vec("Deskhand-v0", num_envs=2, vectorization_mode="async", **settings)
    screenshots, infos = envs.reset(seed=0)
    print(screenshots.shape, *infos["instruction"], sep="\n")
    ended = []
    for _ in range(int(sys.argv[1])):
        screenshots, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        ended += rewards[terminated | truncated].tolist()
    envs.close()
    print(f"{len(ended)} episodes ended, rewards {ended}")
