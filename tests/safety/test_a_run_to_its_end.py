"""Train, resume, export, eval, show, check ... by the command line: what was unpickled, told and printed.

One process lives through it (see `cycle.py`), with secrets in its environment and hostile texts in its data.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import muster

TESTS = Path(__file__).parents[1]
SECRETS = {
    "HF_TOKEN": "planted-hf-11111",
    "WANDB_API_KEY": "planted-wb-22222",
    "OPENAI_API_KEY": "planted-oa-33333",
    "DB_PASSWORD": "planted-db-44444",
    "PLAIN_QUERY": "planted-pq-55555",
    "LITERAL": "planted-lt-66666",
}
"""By the variables that hold them; the last two have names that say nothing, and are told in other ways."""

UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""What steers a terminal or can't be seen; written anew here, not taken from what is tested."""

PACKED = {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK", b"\x1f\x8b", b"BZ", b"(l", b"(d", b"cp"}
"""How pickles of each protocol and packed files start."""


class Cycle(NamedTuple):
    folder: Path
    codes: dict[str, int]
    audit: list[str]

    def printed(self, name: str) -> str:
        """What a call printed on both streams."""
        return "".join(
            (self.folder / "printed" / f"{name}.{kind}").read_bytes().decode("utf-8", "surrogateescape")
            for kind in ("out", "err")
        )

    @property
    def run(self) -> Path:
        return next(path for path in (self.folder / "runs").iterdir() if path.name.startswith("safe"))


@pytest.fixture(scope="module")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Cycle:
    folder = tmp_path_factory.mktemp("cycle")
    paths = [
        str(Path(muster.__file__).parents[1]),
        str(TESTS),
        str(TESTS / "safety" / "hooks"),
    ]
    environment = {
        **os.environ,
        **SECRETS,
        "PYTHONPATH": os.pathsep.join(paths),
        "MUSTER_AUDIT_LOG": str(folder / "audit.log"),
        "MUSTER_CACHE": str(folder / "cache"),
    }
    command = [sys.executable, str(TESTS / "safety" / "cycle.py"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    (folder / "printed" / "itself.err").write_bytes(done.stdout + done.stderr)
    codes = json.loads((folder / "codes.json").read_text(encoding="utf-8"))
    return Cycle(folder, codes, (folder / "audit.log").read_text(encoding="utf-8").splitlines())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_every_call_ends_as_it_should(cycle: Cycle):
    ends = {"used": 2, "fails": 1, "crashes": 1, "refused": 2, "refused_again": 2, "refused_address": 2}
    found = {name: code for name, code in cycle.codes.items() if not name.startswith(("names_", "values_"))}
    assert found == {name: ends.get(name, 0) for name in found}, [cycle.printed(n) for n in found if found[n]]
    assert len(found) == 26
    assert {code for name, code in cycle.codes.items() if name.startswith(("names_", "values_"))} == {2}


def test_nothing_is_unpickled_in_any_process_of_a_run(cycle: Cycle):  # P23
    processes = {line.split()[0] for line in cycle.audit if " starts " in line}
    assert len(processes) >= 8, "the run, and a server of workers for each of its parts"
    with_torch = {line.split()[0] for line in cycle.audit if line.endswith("imports torch")}
    watched = {line.split()[0] for line in cycle.audit if line.endswith("watches torch.load")}
    assert with_torch == watched, "wherever torch is, its loader is watched"
    assert len(with_torch) > 1, "the run's own process, and those that read exports back"
    expected = (" starts ", "imports torch", "watches torch.load")
    assert [line for line in cycle.audit if not any(text in line for text in expected)] == []


def test_the_hook_sees_a_pickle_and_code_that_is_marshalled(tmp_path: Path):
    program = (
        "import marshal, pickle, sys, types\npickle.loads(pickle.dumps(1))\n"
        "pickle.loads(pickle.dumps(types.SimpleNamespace))\nmarshal.loads(marshal.dumps(1))"
    )
    log = tmp_path / "audit.log"
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "safety" / "hooks"), "MUSTER_AUDIT_LOG": str(log)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    seen = [line.split()[1] for line in log.read_text(encoding="utf-8").splitlines()]
    assert seen == ["starts", "pickle.loads", "pickle.loads", "pickle.find_class", "marshal.loads"]


def test_no_file_of_a_run_is_a_pickle_or_an_archive(cycle: Cycle):
    written = [path for part in ("runs", "out", "merged") for path in files(cycle.folder / part)]
    assert len(written) > 40
    assert [path for path in written if path.read_bytes()[:2] in PACKED] == []
    assert {path.suffix for path in written} <= {
        "", ".json", ".jsonl", ".jinja", ".md", ".parquet", ".safetensors", ".toml",
    }  # fmt: skip


def test_no_secret_is_in_any_byte_written_or_printed(cycle: Cycle):  # B77, P28
    searched = [path for path in files(cycle.folder) if path.suffix != ".safetensors" or "runs" in path.parts]
    assert len(searched) > 150
    found = {
        (str(path.relative_to(cycle.folder)), name)
        for path in searched
        for name, secret in SECRETS.items()
        if secret.encode() in path.read_bytes()
    }
    assert found == set()


def test_the_secrets_were_told_and_are_hidden_where_they_were(cycle: Cycle):
    assert "https://***@host/v1?api_key=*** with {'Authorization': '***'}" in cycle.printed("fails")
    assert "***" in (cycle.run / "events.jsonl").read_text(encoding="utf-8")
    assert "reward.options.telling.api_key is ***" in cycle.printed("refused")
    crashed = cycle.printed("crashes")
    assert "Traceback" in crashed
    assert "no words, but *** and \\x1b[2J" in crashed


def test_nothing_printed_steers_a_terminal(cycle: Cycle):  # B74, P24
    for path in files(cycle.folder / "printed"):
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        if path.name != "itself.err":
            assert UNSAFE.findall(text) == [], path.name


def test_hostile_texts_are_shown_as_escapes(cycle: Cycle):
    shown = cycle.printed("show_prompts_json") + cycle.printed("show_group")
    for text in ("\\u001b[2J", "\\x1b[2J", "\\u202e"):
        assert text in shown
    assert "[bold red]markup" in cycle.printed("show_prompts_json")


def test_every_json_line_is_strict_and_plain(cycle: Cycle):
    lines = [
        *(line for path in cycle.run.glob("*.jsonl") for line in path.read_text("utf-8").split("\n")[:-1]),
        *(cycle.printed(name) for name in cycle.codes if name.startswith("show") and name.endswith("json")),
        *(cycle.folder / "printed" / "resume_json.out").read_text("utf-8").split("\n")[:-1],
    ]

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert len(lines) > 20
    for line in lines:
        assert line.isascii()
        json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize("card", ["out", "merged"])
def test_the_model_card_is_markdown_that_no_text_breaks_out_of(cycle: Cycle, card: str):
    text = (cycle.folder / card / "README.md").read_text(encoding="utf-8")
    assert UNSAFE.findall(text) == []
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["tags"] == ["muster", "grpo", "text-generation"]
    blocks = re.findall(r"^(`{3,})(\w+)\n(.*?)^\1$", body, re.MULTILINE | re.DOTALL)
    assert [language for _, language, _ in blocks] == ["python", "toml"]
    prose = re.sub(r"^(`{3,})\w+\n.*?^\1$", "", body, flags=re.MULTILINE | re.DOTALL)
    assert "<" not in re.sub(r"(`+)[^`].*?\1", "", prose), "what people named stands in code alone"
    headings = [line for line in prose.splitlines() if line.startswith("#")]
    assert headings[1:] == ["## Held-out result", "## Loading", "## Settings", "## Versions"]


def test_the_configuration_that_was_written_reads_back_equal_and_can_be_printed(cycle: Cycle):
    text = (cycle.run / "config.toml").read_text(encoding="utf-8")
    assert UNSAFE.findall(text) == []
    assert "\\u001b]52;c;" in text
    assert cycle.codes["resume"] == 0, "a resume compares it with the configuration it came from"
