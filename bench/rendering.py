"""bench/RESULTS.md from the parts' JSON: nothing in it is written by hand."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from figures import figure, ratio, rounded, shown
from keeping import load

Data = dict[str, Any]
"""What a part measured, as it was read back."""

TITLES = {
    "S": "S: 2 prompts x 8, prompt 66, reference on",
    "L": "L: 2 prompts x 16, prompt 254, no reference",
    "S_lora": "S with LoRA of rank 32 on all linear layers",
}
HEAD = ("figure", "Muster", "compared with", "ratio")
GIGA = 1e9


def write_report(results: Path) -> None:
    """Writes RESULTS.md beside the folder of results, and the pictures into it."""
    found = {part: data for part in SECTIONS if (data := load(results, part)) is not None}
    if not found:
        return
    if "curves" in found:
        # matplotlib takes seconds to import: only where there is something to draw.
        from pictures import draw_curves

        draw_curves(found["curves"], results)
    (results.parent / "RESULTS.md").write_text(report(found), encoding="utf-8")


def report(found: dict[str, Data]) -> str:
    """The whole page from what was measured so far, by part."""
    sections = [_introduction(found)]
    sections += [SECTIONS[part](found[part]) for part in SECTIONS if part in found]
    return "\n\n".join(sections) + "\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _introduction(found: dict[str, Data]) -> str:
    runs = {part: data["measured_on"] for part, data in found.items()}
    rows = [
        (
            part,
            on["date"],
            f"`{on['command']}`",
            f"{on['processor']}, {on['instructions']}, {on['threads']} threads"
            + (f", {on['memory_bytes'] / GIGA:.0f} GB" if on["memory_bytes"] else ""),
            ", ".join(f"{name} {number}" for name, number in on["versions"].items())
            + f", Python {on['python']}",
        )
        for part, on in runs.items()
    ]
    groups: dict[tuple[str, ...], list[str]] = {}
    for part, *rest in rows:
        groups.setdefault(tuple(rest), []).append(part)
    models = ", ".join(sorted({f"`{on['model']}`" for on in runs.values()}))
    return "\n\n".join(
        (
            "# Results",
            f"Measured on {models} in float32. Every figure is the median of its rounds, with the smallest "
            "and the largest in brackets; both sides of a ratio were measured in turn in one run, and its "
            "brackets span the rounds. What is equal on both sides and what isn't: "
            "[docs/benchmarks.md](../docs/benchmarks.md). `make bench` measures what has no result yet.",
            table(
                ("parts", "day", "command", "machine", "versions"),
                ((", ".join(parts), *rest) for rest, parts in groups.items()),
            ),
            f"Share of the processors' time that other processes took meanwhile: {_company(runs)}.",
        )
    )


def _company(runs: dict[str, Data]) -> str:
    """By part; what was measured in company says little."""
    shares = {part: on["others_share"] for part, on in runs.items()}
    return ", ".join(
        f"{part} {'not known' if share is None else f'{share:.0%}'}" for part, share in shares.items()
    )


def _gradient(data: Data) -> str:
    return (
        "## The same gradient\n\n"
        f"On one batch of {data['rollouts']} rollouts ({min(data['lengths'])} to {max(data['lengths'])} "
        f"tokens, {data['share_outside_clip']:.0%} of the ratios outside the clip, KL coefficient "
        f"{data['kl_coef']}), the gradient of Muster's update and that of TRL's loss differ by "
        f"{rounded(data['relative_difference'], 2)} of TRL's norm, over all {data['parameters']} tensors "
        f"of weights; at most {data['tolerance']:.0e} is let pass. "
        f"Norms: Muster {data['muster_norm']:.6g}, TRL {data['trl_norm']:.6g}."
    )


def _steps(data: Data) -> str:
    cases = {name: data[name] for name in TITLES if name in data}
    seconds, memory = [], []
    for name, case in cases.items():
        ours, theirs = case["seconds"]["muster"], case["seconds"]["trl"]
        rounds = len(ours)
        seconds.append(
            (
                f"{TITLES[name]} ({rounds} round{'s' if rounds > 1 else ''})",
                f"{shown(figure(ours))} s",
                f"TRL {shown(figure(theirs))} s",
                f"{shown(ratio(theirs, ours))} times as fast",
            )
        )
        peak, other = case["peak_bytes"]["muster"], case["peak_bytes"]["trl"]
        memory.append(
            (
                TITLES[name],
                f"{peak / GIGA:.1f} GB",
                f"TRL {other / GIGA:.1f} GB",
                f"{rounded(peak / other)} of it",
            )
        )
    phases = [(TITLES[name], _split(case["muster_phases"])) for name, case in cases.items()]
    bounds = [(TITLES[name], *_bound(case)) for name, case in cases.items() if "products_s" in case]
    return "\n\n".join(
        (
            "## Seconds of a step",
            table(HEAD, seconds),
            "## Peak of memory",
            "Of the whole process, the largest resident set up to the last step.",
            table(HEAD, memory),
            "## Where the remaining time goes: phases",
            table(("step of Muster", "share of its seconds"), phases),
            "The matrix products of a step alone, each prompt once per group, at the fastest that this "
            "machine does them: no step in float32 takes less, and no ratio is above the last column.",
            table(("step", "sampling", "reference", "update", "all", "of Muster's step", "bound"), bounds),
        )
    )


FOOTPRINTS = {
    "full": "all weights",
    "lora": "LoRA",
    "lora_checkpointed": "LoRA, gradient checkpointing",
    "qlora": "QLoRA: nf4, 8-bit AdamW, gradient checkpointing",
}


def _footprint(data: Data) -> str:
    rows = []
    for name, title in FOOTPRINTS.items():
        for case, kind in ((name, "no reference"), (f"{name}_reference", "with a reference")):
            if peaks := data["peak_bytes"].get(case):
                rows.append((title, kind, *(_gigabytes(peaks.get(side, [])) for side in ("muster", "trl"))))
    return "\n\n".join(
        (
            "## Peak of memory: full, LoRA, QLoRA",
            "Of the whole process, after two steps of 2 prompts x 8, prompt 66, 64 new tokens; adapters of "
            "rank 32 on all linear layers. Where a case was measured in several processes, the least and the "
            "largest of their peaks. TRL has gradient checkpointing on unless it is told otherwise, as it is "
            "in the rows that don't name it; it keeps an adapter on a quantised base in bfloat16, Muster in "
            "float32. A dash is a case that was not measured.",
            table(("trained", "", "Muster", "TRL"), rows),
        )
    )


def _gigabytes(peaks: list[int]) -> str:
    if not peaks:
        return "-"
    least, most = (f"{peak / GIGA:.2f}" for peak in (min(peaks), max(peaks)))
    return f"{least} GB" if least == most else f"{least} to {most} GB"


def _bound(case: Data) -> list[str]:
    """Seconds of the products by phase, their share of Muster's step, and TRL's step over them."""
    alone = case["products_s"]
    whole = sum(alone.values())
    ours, theirs = (figure(case["seconds"][side]).median for side in ("muster", "trl"))
    seconds = [f"{rounded(value, 2)} s" for value in (*alone.values(), whole)]
    return [*seconds, f"{whole / ours:.0%}", rounded(theirs / whole)]


def _split(rounds: list[dict[str, float]]) -> str:
    """Each phase's share of the seconds of all rounds, the largest first."""
    sums: dict[str, float] = {}
    for phases in rounds:
        for name, seconds in phases.items():
            sums[name] = sums.get(name, 0.0) + seconds
    whole = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in ordered if seconds / whole >= 0.005)


def _update(data: Data) -> str:
    rows = []
    for tokens, case in data["prompts"].items():
        packed, plain, products = (case["seconds"][name] for name in ("packed", "plain", "products"))
        title = f"update of {data['group_size']} x {data['new_tokens']} tokens, prompt {tokens}"
        rows += [
            (
                title,
                f"{shown(figure(packed))} s",
                f"plain padded rows {shown(figure(plain))} s",
                f"{shown(ratio(plain, packed))} times as fast",
            ),
            (
                f"{title}: share of the matrix-product rate",
                f"{shown(figure(packed))} s",
                f"its products alone {shown(figure(products))} s",
                shown(ratio(products, packed)),
            ),
        ]
    return "## Update\n\nOne group, forward, backward and optimizer step.\n\n" + table(HEAD, rows)


def _sampling(data: Data) -> str:
    rows = []
    for case in data["cases"].values():
        rates = case["tokens_per_s"]
        title = f"prompt {case['prompt_tokens']}, {case['rows']} rows"
        ours = f"{shown(figure(rates['muster']))} tokens/s"
        if "generate" in rates:
            other = f"`generate` {shown(figure(rates['generate']))} tokens/s"
            rows.append(
                (title, ours, other, f"{shown(ratio(rates['muster'], rates['generate']))} times as fast")
            )
        alone = f"the products alone {shown(figure(rates['products']))} tokens/s"
        rows.append(
            (
                f"{title}: share of the matrix-product rate",
                ours,
                alone,
                shown(ratio(rates["muster"], rates["products"])),
            )
        )
    return (
        f"## Sampling\n\nExactly {data['new_tokens']} tokens a row, prompts included in the time.\n\n"
        + table(HEAD, rows)
    )


def _vllm(data: Data) -> str:
    rows = [
        (
            f"prompt {case['prompt_tokens']}, {case['rows']} rows",
            f"{shown(figure(case['tokens_per_s']['muster']))} tokens/s",
            f"vLLM {shown(figure(case['tokens_per_s']['vllm']))} tokens/s",
            f"{shown(ratio(case['tokens_per_s']['muster'], case['tokens_per_s']['vllm']))} times as fast",
        )
        for case in data["cases"].values()
    ]
    return "## Sampling against vLLM's CPU build\n\n" + table(HEAD, rows)


def _batching(data: Data) -> str:
    rows, settings = [], []
    for case in data["cases"].values():
        title, rates = _batching_title(case), case["tokens_per_s"]
        ours = f"{shown(figure(rates['muster']))} tokens/s"
        for name, text in (("paged", "continuous batching"), ("generate", "`generate`")):
            theirs = f"{text} {shown(figure(rates[name]))} tokens/s"
            rows.append((title, ours, theirs, f"{shown(ratio(rates['muster'], rates[name]))} times as fast"))
        pages = f"{case['pages']:,}"
        off = f"{rounded(case['difference'], 2)} nats"
        settings.append((title, f"`{case['attention']}`", str(case["paged_at_once"]), pages, off))
    return "\n\n".join(
        (
            "## Sampling against transformers' continuous batching",
            f"Prompts of {data['prompt_tokens']} tokens, computed in the time; tokens that were asked "
            "for, a second, all three in turn in one process. Where lengths are uneven, `generate` waits for "
            "the longest row of a batch; the other two let rows join as others end.",
            table(HEAD, rows),
            f"Continuous batching with pages of {data['page_tokens']} tokens and at most "
            f"{data['batch_tokens']} tokens a forward, logprobs on, a prompt computed once for its rows; its "
            "attention and its rows at once are what a short trial of the case found fastest. The last "
            "column is by how much logprobs of one of its rows differ at most from those of the model's "
            "plain forward.",
            table(("case", "attention", "rows at once", "pages", "logprobs"), settings),
        )
    )


def _batching_title(case: Data) -> str:
    shortest, longest = case["lengths"]
    tokens = f"{longest} tokens" if shortest == longest else f"{shortest} to {longest} tokens"
    title = f"{case['rows']} rows of {case['num_prompts']} prompts, {tokens}"
    return title if case["at_once"] == case["rows"] else f"{title}, {case['at_once']} at once"


def _target(data: Data) -> str:
    sides = data["sides"]
    names = {"muster": "Muster", "trl": "TRL"}
    rows = [
        (
            names[side],
            "yes" if run["reached"] else "no",
            str(run["steps"]),
            f"{run['training_s']:.0f} s",
            ", ".join(f"{one['reward']:.3f} ({one['step']})" for one in run["evaluations"]),
        )
        for side, run in sides.items()
    ]
    text = (
        f"Seconds of training until the first evaluation with a held-out reward of {data['target']} or "
        f"more, on examples/json_extraction.toml. Evaluated every {data['eval_every']} steps on the same 64 "
        "prompts; the seconds of evaluations, and of loading, are left out on both sides. One run each: "
        "sampling is random, so the number of steps is too."
    )
    parts = [f"## Time to a held-out reward of {data['target']}", text]
    parts.append(table(("side", "reached", "steps", "seconds of training", "held-out reward (step)"), rows))
    if all(run["reached"] for run in sides.values()):
        times = sides["trl"]["training_s"] / sides["muster"]["training_s"]
        parts.append(f"TRL / Muster: {rounded(times)}.")
    else:
        parts.append("No ratio: not both sides reached it.")
    return "\n\n".join(parts)


def _start(data: Data) -> str:
    names = {
        "first_token_s": "first token of all, which the self-check samples",
        "self_checked_s": "self-check passed",
        "first_rollout_token_s": "first token of a rollout",
    }
    rows = [(text, f"{shown(figure(data[name]))} s") for name, text in names.items()]
    head = ("`muster train examples/json_extraction.toml`, model cached", "after its start")
    return "## Start\n\n" + table(head, rows)


def _curves(data: Data) -> str:
    def rows(points: list[Data], name: str) -> list[tuple[str, ...]]:
        return [
            (
                str(point[name]),
                f"{shown(figure(point['sample_s']))} s",
                f"{shown(figure(point['update_s']))} s",
                f"{rounded(total / point['group_size'])} s",
            )
            for point in points
            for total in [figure(point["sample_s"]).median + figure(point["update_s"]).median]
        ]

    columns = ("sampling", "update", "both, per completion")
    return "\n\n".join(
        (
            "## Growth",
            f"Muster alone, one group, {data['new_tokens']} new tokens.",
            f"![Seconds per completion by group size, prompt {data['group_prompt']}](results/group.svg)",
            table(
                (f"group size, prompt {data['group_prompt']}", *columns), rows(data["groups"], "group_size")
            ),
            f"![Seconds by prompt length, group {data['length_group']}](results/prompt.svg)",
            table(
                (f"prompt tokens, group {data['length_group']}", *columns),
                rows(data["lengths"], "prompt_tokens"),
            ),
        )
    )


def _profile(data: Data) -> str:
    parts = [
        "## Where the remaining time goes: operations",
        f"{data['rows']} rows, prompt {data['prompt_tokens']}: {data['sampled_tokens']} sampled tokens, and "
        f"an update on {data['update_tokens']}, under torch's profiler. Shares of the time in each operation "
        "itself; `mkldnn::_linear_pointwise`, `aten::mm`, `aten::addmm`, `aten::addmm_` and `aten::bmm` are "
        "matrix products.",
    ]
    for phase, tops in data["phases"].items():
        rows = [(f"`{top['op']}`", f"{top['share']:.1%}", f"{top['calls']:,}") for top in tops]
        parts.append(table((f"operation ({phase})", "share", "calls"), rows))
    return "\n\n".join(parts)


SECTIONS: dict[str, Callable[[Data], str]] = {
    "gradient": _gradient,
    "steps": _steps,
    "footprint": _footprint,
    "target": _target,
    "sampling": _sampling,
    "vllm": _vllm,
    "batching": _batching,
    "update": _update,
    "start": _start,
    "curves": _curves,
    "profile": _profile,
}
"""Parts in the order of the page."""
