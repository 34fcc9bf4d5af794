"""Evaluate a model behind an OpenAI-compatible endpoint; its API key is in OPENAI_API_KEY.
Run: python examples/evaluate_served_model.py runs/qwen http://127.0.0.1:8000/v1 qwen3-vl-4b qwen3_vl 40"""

import sys

import deskhand as dh

run_dir, url, served_model_name, action_format, count = sys.argv[1:]
report = dh.evaluate(
    url,
    served_model_name=served_model_name,
    tasks=dh.load_tasks("basics", split="test", count=int(count)),
    agent=dh.DesktopAgent(action_format=action_format, prompt_style="full", max_new_tokens=256),
    run_dir=run_dir,
    max_concurrent_episodes=8,
)
low, high = report.success.interval
print(f"{report.success.value:.1%} [{low:.1%}, {high:.1%}]")
for family, rate in report.by_family.items():
    print(f"{family:20} {rate.hits}/{rate.total}")
