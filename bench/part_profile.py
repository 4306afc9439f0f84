"""Part `profile`: which operations a step of Muster spends its time in, sampling and update apart."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

from keeping import Data, Settings, save, say
from muster import pretrained
from muster_side import batch_of, prompts_of, sample, session, update_once
from workloads import NEW_TOKENS, WORKLOADS, exact_prompts, write_prompts

PROMPT_TOKENS = 66
GROUP_SIZE = 16
SAMPLED_TOKENS = 16
TOP = 10


def measure(settings: Settings) -> None:
    """Workload S with twice the completions, once warm and then under torch's profiler."""
    tokenizer = pretrained.load_tokenizer(settings.model)
    data = write_prompts(settings.work / "profile.jsonl", exact_prompts(tokenizer, 2, PROMPT_TOKENS))
    job = WORKLOADS[1].job(settings.model, data, settings.threads)
    with session(job, settings.work) as run:
        prompts = prompts_of(run, 2)
        say("profile: warming up")
        batch = batch_of(prompts, sample(run, prompts, GROUP_SIZE))
        update_once(run.policy, run.optimizer, batch, run.objective)
        say("profile: sampling, then an update")
        phases = {
            "sampling": _top(lambda: sample(run, prompts, GROUP_SIZE, SAMPLED_TOKENS)),
            "update": _top(lambda: update_once(run.policy, run.optimizer, batch, run.objective)),
        }
    shape = {"prompt_tokens": PROMPT_TOKENS, "rows": 2 * GROUP_SIZE, "sampled_tokens": SAMPLED_TOKENS}
    save(settings, "profile", {**shape, "update_tokens": NEW_TOKENS, "phases": phases})


def _top(work: Callable[[], object]) -> list[Data]:
    """The operations by their own time on the processor, as shares of all, with how often they ran."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return [
        {"op": str(event.key), "share": event.self_cpu_time_total / total, "calls": int(event.count)}
        for event in events[:TOP]
    ]
