"""What samples: TRL has vLLM in the trainer's own process, or on servers."""

from muster.fromtrl.draft import Arguments, Draft


def sampler(draft: Draft, args: Arguments) -> None:
    """The engine that the arguments name; without vLLM, Muster's own."""
    if not args.flag("use_vllm", False):
        return
    if args.get("vllm_mode", "colocate") == "server":
        draft.set("engine.kind", "vllm", 'vllm_mode "server"; muster engine serve starts one')
        draft.set("engine.options.urls", [_url(args)], "vllm_server_base_url, or host and port")
        patience_s = args.number("vllm_server_timeout", 240.0)
        draft.set("engine.options.patience_s", patience_s, "vllm_server_timeout")
    elif "model.quantize" in draft.settings:
        draft.tell(
            "GRPOConfig(use_vllm=True): vLLM would sample on the base in full precision, and model.quantize "
            "is set; this run samples without it"
        )
    else:
        _inside(draft, args)


def _inside(draft: Draft, args: Arguments) -> None:
    draft.set("engine.kind", "vllm_inside", 'vllm_mode "colocate"')
    share = args.number("vllm_gpu_memory_utilization", 0.3)
    draft.set("engine.options.memory_share", share, "vllm_gpu_memory_utilization")
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
