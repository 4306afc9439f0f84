"""What samples: TRL has vLLM in the trainer's own process, or on servers; Unsloth in the process."""

from muster.fromtrl.draft import Arguments, Draft

TRL_SHARE, UNSLOTH_SHARE = 0.3, 0.5
"""Of a GPU's memory, where a script doesn't say."""


def sampler(draft: Draft, args: Arguments, unsloth: Arguments) -> None:
    """The engine that the arguments name; without vLLM, Muster's own. `draft` has the model's settings."""
    by_trl, by_unsloth = args.flag("use_vllm", False), unsloth.flag("fast_inference", False)
    if not (by_trl or by_unsloth):
        return
    name = "gpu_memory_utilization" if by_unsloth else "vllm_gpu_memory_utilization"
    share = unsloth.number(name, UNSLOTH_SHARE) if by_unsloth else args.number(name, TRL_SHARE)
    if "model.quantize" in draft.settings:
        asked = (
            f"FastLanguageModel.from_pretrained(fast_inference=True, {name}={share})"
            if by_unsloth
            else "GRPOConfig(use_vllm=True)"
        )
        draft.tell(
            f"{asked}: vLLM would sample on the base in full precision, another policy than the one that is "
            "trained, and model.quantize is set; this run samples without it"
        )
    elif args.get("vllm_mode", "colocate") == "server" and not by_unsloth:
        draft.set("engine.kind", "vllm", 'vllm_mode "server"; muster engine serve starts one')
        draft.set("engine.options.urls", [_url(args)], "vllm_server_base_url, or host and port")
        patience_s = args.number("vllm_server_timeout", 240.0)
        draft.set("engine.options.patience_s", patience_s, "vllm_server_timeout")
    else:
        draft.set("engine.kind", "vllm_inside", "fast_inference" if by_unsloth else 'vllm_mode "colocate"')
        draft.set("engine.options.memory_share", share, name)
        sleeps = args.flag("vllm_enable_sleep_mode", False)
        draft.set("engine.options.sleep", sleeps, "vllm_enable_sleep_mode")
        draft.tell(
            'engine.kind = "vllm_inside" needs vLLM and Muster in one environment, and one process; "local" '
            "needs neither"
        )


def _url(args: Arguments) -> str:
    """Where the server answers; every address of a machine, TRL's default, is none that can be called."""
    if base := args.get("vllm_server_base_url"):
        return str(base)
    host, port = str(args.get("vllm_server_host", "")), args.whole("vllm_server_port", 8000)
    return f"http://{host if host not in ('', '0.0.0.0') else '127.0.0.1'}:{port}"
