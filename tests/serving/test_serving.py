"""Starting a server: what vLLM is told, and that it ends with us, children included."""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from muster import serving
from muster.cli import main
from muster.config import to_toml
from muster.errors import ConfigError, EngineError
from muster.serving import Command, Serving, command_of, serve
from muster.vllm_needs import with_head_of_its_own
from tiny import save_tiny_model
from toy_run import toy_config


@pytest.fixture
def python(tmp_path):
    file = tmp_path / "vllm-python"
    file.write_text("")
    return file


def told(command: Command) -> dict[str, str]:
    """The flags with their values; a flag alone has none."""
    words = list(command.arguments)
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {word: "" if after.startswith("--") else after for word, after in pairs if word.startswith("--")}


def unsaid(text):
    pass


def test_a_run_s_file_says_what_its_server_is_told(tmp_path, python, capsys):
    save_tiny_model(tmp_path / "model")
    config = toy_config(tmp_path, model={"lora": {"rank": 12}}, sampling={"top_k": 40}, run={"seed": 9})
    file = tmp_path / "run.toml"
    file.write_text(to_toml(config))
    assert main(["engine", "serve", str(file), "--vllm-python", str(python), "--print-only", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    flags = told(Command(arguments=tuple(printed["arguments"]), environment={}, url=""))
    assert flags == {
        "--model": str(tmp_path / "model"),
        "--host": "127.0.0.1",
        "--port": "8000",
        "--dtype": "float32",
        "--max-model-len": "128",
        "--seed": "9",
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        "--max-logprobs": "40",
        "--enable-scale-out": "",
        "--enable-lora": "",
        "--max-lora-rank": "16",
        "--max-loras": "1",
        "--max-cpu-loras": "2",
        "--enforce-eager": "",
    }
    assert printed["environment"]["VLLM_SERVER_DEV_MODE"] == "1"
    assert printed["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_the_key_is_in_the_environment_and_is_not_printed(tmp_path, python, capsys, monkeypatch):
    monkeypatch.setenv("MY_SERVERS", "a-key-of-mine")
    save_tiny_model(tmp_path / "model")
    words = ["engine", "serve", "--model", str(tmp_path / "model"), "--vllm-python", str(python)]
    assert main([*words, "--lora-rank", "8", "--key-env", "MY_SERVERS", "--print-only"]) == 0
    out = capsys.readouterr().out
    assert "VLLM_API_KEY='***'" in out or "VLLM_API_KEY=***" in out
    assert "a-key-of-mine" not in out
    serving = Serving(python=python, model=str(tmp_path / "model"), rank=8, key_env="MY_SERVERS")
    command = command_of(serving, unsaid)
    assert command.environment["VLLM_API_KEY"] == "a-key-of-mine"
    assert "a-key-of-mine" not in repr(command)


def test_a_tied_head_is_served_as_a_tensor_of_its_own_and_copied_once(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    said: list[str] = []
    copy = Path(with_head_of_its_own(str(model), said.append))
    assert len(said) == 1
    own, given = load_file(copy / "model.safetensors"), load_file(model / "model.safetensors")
    assert "lm_head.weight" not in given
    assert (own["lm_head.weight"] == given["model.embed_tokens.weight"]).all()
    assert json.loads((copy / "config.json").read_text())["tie_word_embeddings"] is False
    assert with_head_of_its_own(str(model), said.append) == str(copy)
    assert len(said) == 1
    apart = save_tiny_model(tmp_path / "apart", "qwen2")
    assert with_head_of_its_own(str(apart), unsaid) == str(apart)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "one of the two"),
        (["run.toml", "--model", "m"], "one of the two"),
        (["run.toml", "--lora-rank", "8"], "--lora-rank goes with --model"),
        (["--model", "model", "--lora-rank", "600"], "up to rank 512"),
        (["--model", "model", "--lora-rank", "8", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
    ],
)
def test_what_can_not_be_served_is_refused(tmp_path, python, words, says, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny_model(tmp_path / "model")
    assert main(["engine", "serve", *words, "--vllm-python", str(python)]) == 2
    assert says in capsys.readouterr().err


def test_a_python_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="--vllm-python is 'nowhere'"):
        command_of(Serving(python=Path("nowhere"), model="m"), unsaid)


SERVER = """
import http.server, os, subprocess, sys
child = subprocess.Popen(["sleep", "60"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def script(text: str, *words: str, port: int) -> Command:
    return Command(
        arguments=(sys.executable, "-S", "-c", text, *words), environment={}, url=f"http://127.0.0.1:{port}"
    )


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_with_its_children(tmp_path, number, code):
    port, pids = free_port(), tmp_path / "pids"
    said: list[str] = []

    def say(text):
        said.append(text)
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()

    assert serve(script(SERVER, str(pids), str(port), port=port), say) == code
    assert said == [f"ready: http://127.0.0.1:{port}"]
    deadline = time.monotonic() + 30
    left = [int(pid) for pid in pids.read_text().split()]
    while any(map(is_running, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, left))


STAYING = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
answers = iter([200])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(next(answers, int(sys.argv[2])))
        self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_that_does_not_end_when_it_is_told_to_is_killed(monkeypatch):
    monkeypatch.setattr(serving, "POLL_S", 0.05)
    monkeypatch.setattr(serving, "END_S", 0.2)
    port = free_port()

    def say(text):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()

    assert serve(script(STAYING, str(port), "200", port=port), say) == 143


def test_a_server_whose_engine_is_gone_and_that_stays_is_ended(monkeypatch):
    monkeypatch.setattr(serving, "POLL_S", 0.05)
    monkeypatch.setattr(serving, "END_S", 0.2)
    monkeypatch.setattr(serving, "WATCH_S", 0.2)
    port = free_port()
    with pytest.raises(EngineError, match="engine died, and its server stayed"):
        serve(script(STAYING, str(port), "503", port=port), unsaid)


def test_a_server_that_ends_by_itself_is_told(capfd):
    with pytest.raises(EngineError, match="vLLM ended with exit code 3"):
        serve(script("import sys; sys.exit(3)", port=free_port()), unsaid)
    assert serve(script("", port=free_port()), unsaid) == 0


def test_a_port_that_is_taken_is_refused_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}"):
            serve(script("raise SystemExit(9)", port=port), unsaid)
