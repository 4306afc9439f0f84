"""GGUF files as folders of safetensors: converted once into a cache, loaded in a second from then on."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from muster.errors import ModelError
from muster.files import make_folder, publish_folder, remove, write_by
from muster.quiet import quiet

FORMAT = 3
"""Part of a folder's name: counts up when the conversion writes something else."""

END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>")
"""Tokens that end a turn or a text. A GGUF names one of them, a model writes several."""

END_FIELDS = ("eos", "eot", "eom")
"""Ends that a file can name: of a text, a turn, a message."""

SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")
"""Ways of splitting text that cut out each digit first. transformers 5.24 reads past that, and then blanks
before a number become other tokens than the model was trained on: "\\n\\n1" would have two line breaks."""

STALE_S = 3600.0
"""A conversion takes minutes at most: what is older was left by a process that was killed."""


def cache_folder() -> Path:
    """Where converted models lie: MUSTER_CACHE, or the user's cache folder of this platform."""
    if named := os.environ.get("MUSTER_CACHE"):
        return Path(named).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "muster"
    try:
        home = Path.home()
    except RuntimeError:
        # A user without HOME whom the system does not know: nothing can be written there, as is then said.
        home = Path(os.devnull)
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "muster"


def converted(gguf: Path, say: Callable[[str], None]) -> Path:
    """The folder that holds the GGUF's model as safetensors; converts it where there is none yet."""
    final = cache_folder() / _key(gguf)
    if final.is_dir():
        return final
    final = _writable(final.parent, say) / final.name
    if final.is_dir():
        return final
    say(f"converting {gguf.name} once, about half a minute for a small model")
    try:
        _convert_into(gguf, final)
    except OSError as error:
        raise ModelError(
            f"the converted {gguf.name} can't be written to {final.parent}: {error}. "
            "Set the environment variable MUSTER_CACHE to a folder that can be written and has room."
        ) from error
    return final


def _writable(folder: Path, say: Callable[[str], None]) -> Path:
    """The cache folder; where a home can't be written, a folder of this user's beside temporary files.

    A folder that MUSTER_CACHE names is taken at its word.
    """
    if "MUSTER_CACHE" in os.environ:
        return folder
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        other = Path(tempfile.gettempdir()) / f"muster-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
        make_private(other)
        say(
            f"the cache {folder} can't be written ({error.strerror}); converted models go to {other}. "
            "Set the environment variable MUSTER_CACHE to keep them elsewhere."
        )
        return other


def make_private(folder: Path) -> None:
    """Makes a folder that only this user may write; where others share the place, it may be there already."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if hasattr(os, "getuid") and (
        not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022
    ):
        raise ModelError(
            f"{folder} is not a folder that only you may write, so models in it can't be trusted. Set the "
            "environment variable MUSTER_CACHE to one that is."
        )


def _key(gguf: Path) -> str:
    """Name of the cache folder: file name, size and content; the name can't lead elsewhere."""
    size = gguf.stat().st_size
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", gguf.stem).lstrip(".")[:80]
    return f"{stem}-{size}-{_digest(gguf.resolve(), size, gguf.stat().st_mtime_ns)}-v{FORMAT}"


@functools.lru_cache(maxsize=8)
def _digest(gguf: Path, _size: int, _modified_ns: int) -> str:
    """Start of the content's SHA-256; a file that changed is read again."""
    with gguf.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _convert_into(gguf: Path, final: Path) -> None:
    """Writes beside `final` and renames; where another process was faster, its folder stays."""
    make_folder(final.parent)
    _remove_stale(final)
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as work:
        staging = Path(work) / "model"
        model, tokenizer = read_gguf(gguf)
        with quiet():
            write_by(model.save_pretrained, staging)
            write_by(tokenizer.save_pretrained, staging)
        try:
            if not final.is_dir():
                publish_folder(staging, final)
        except OSError:
            # The other process may have renamed between our look and our rename.
            if not final.is_dir():
                raise


def _remove_stale(final: Path) -> None:
    for left in final.parent.glob(f".{final.name}.*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_S:
                remove(left)


def _alone(gguf: Path, folder: Path) -> Path:
    """The file in a folder of its own: files that lie beside a GGUF would pass for parts of its model."""
    folder.mkdir()
    link = folder / "model.gguf"
    try:
        link.symlink_to(gguf.resolve())
    except OSError:
        # Windows lets few users make links.
        shutil.copyfile(gguf, link)
    return link


def read_gguf(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of the GGUF; whatever fails in between is a ModelError that names the file."""
    with tempfile.TemporaryDirectory(prefix="muster-gguf-") as work:
        return _read(_alone(gguf, Path(work) / "source"), gguf)


def _read(source: Path, gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        with quiet():
            reader = GGUFReader(source)
            tokenizer = _read_tokenizer(source, reader)
            model = _read_model(source, reader)
    except Exception as error:
        # The link that was read is gone when a person reads this.
        reason = str(error).replace(str(source), gguf.name).rstrip(".")
        raise ModelError(
            f"{gguf} can't be read as a model: {type(error).__name__}: {reason}. Check that the file is "
            "whole, and that transformers reads GGUF files of its kind; else name a folder of safetensors."
        ) from error
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=sorted({*_end_ids(tokenizer), *_ends_of(reader)}),
        pad_token_id=tokenizer.pad_token_id,
    )
    return model, tokenizer


def named_ends(gguf: Path) -> tuple[int, ...]:
    """The tokens that the file itself names as ends."""
    return _ends_of(GGUFReader(gguf))


def _ends_of(reader: GGUFReader) -> tuple[int, ...]:
    fields = [reader.get_field(f"tokenizer.ggml.{name}_token_id") for name in END_FIELDS]
    return tuple(sorted({int(field.contents()) for field in fields if field is not None}))


def _end_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokenizer's end token, and whatever else in its vocabulary ends a turn or a text."""
    vocabulary = tokenizer.get_vocab()
    return sorted({vocabulary[token] for token in (*END_TOKENS, tokenizer.eos_token) if token in vocabulary})


def _read_tokenizer(source: Path, reader: GGUFReader) -> PreTrainedTokenizerBase:
    """The GGUF's tokenizer, padding with its end token if it names no other."""
    tokenizer = AutoTokenizer.from_pretrained(
        str(source.parent), gguf_file=source.name, trust_remote_code=False
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if isinstance(tokenizer, PreTrainedTokenizerFast) and _splitting(reader) in SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer


def _splitting(reader: GGUFReader) -> str:
    """How the GGUF says that text is split before it is encoded; empty where it doesn't."""
    field = reader.get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field is not None else ""


def _read_model(source: Path, reader: GGUFReader) -> PreTrainedModel:
    """The GGUF's weights as float32 in a model that knows nothing of GGUF.

    What transformers makes of a GGUF counts as quantized, and refuses to be saved.
    """
    loaded = AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.float32, trust_remote_code=False
    )
    config = loaded.config
    _scale_positions(config, reader)
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    with torch.random.fork_rng(devices=[]):
        fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    return fresh


def _scale_positions(config: PreTrainedConfig, reader: GGUFReader) -> None:
    """Sets the scaling of positions that the file names, which transformers 5.24 reads past."""
    scaling = {
        name.partition(".rope.scaling.")[2]: field.contents()
        for name, field in reader.fields.items()
        if ".rope.scaling." in name
    }
    kind = "by a table" if any(t.name == "rope_freqs.weight" for t in reader.tensors) else scaling.get("type")
    if kind in (None, "none"):
        return
    # Families that place tokens otherwise, GPT-2 say, have none.
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type", "default") != "default":
        return
    if kind != "linear":
        raise ValueError(f"its positions are scaled ({kind}) in a way that can't be read from a GGUF yet")
    config.rope_parameters = {**parameters, "rope_type": "linear", "factor": float(scaling["factor"])}
