"""What the server says about runs: lists, curves, groups, rollouts, tokens."""

import json
import math

import pytest
from starlette.testclient import TestClient

import view_runs
from muster.view.server import create_app
from writing_on import set_back

Json = dict


def get(client: TestClient, path: str, **query: str | int) -> Json:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def id_of(client: TestClient, name: str) -> str:
    return next(run["id"] for run in get(client, "/api/runs")["runs"] if run["name"] == name)


def test_runs_are_listed_with_how_they_are(client: TestClient):
    runs = {run["name"]: run for run in get(client, "/api/runs")["runs"]}
    assert {name: run["kind"] for name, run in runs.items() if "<" not in name} == {
        "good": "muster", "run_v1": "muster", "trl-out": "trl", "plain": "metrics",
    }  # fmt: skip
    status = runs["good"]["status"]
    assert (status["state"], status["step"], status["steps"]) == ("finished", 8, 8)
    whole = get(client, f"/api/runs/{runs['good']['id']}")["status"]
    assert whole["held_out"] == [
        {"step": 0, "mean": 0.2, "low": pytest.approx(0.1), "high": pytest.approx(0.3)},
        {"step": 8, "mean": 0.9, "low": 0.8, "high": 1.0},
    ]
    first, last = runs["good"]["curve"][1], runs["good"]["curve"][-1]
    assert status["change"] == pytest.approx(
        sum([*runs["good"]["curve"][-2:]]) / 2 - (first + runs["good"]["curve"][2]) / 2
    )
    assert status["reward"] == last
    assert runs["plain"]["curve"] == [0.5, None, 0.75]


def test_speed_is_tokens_over_the_seconds_that_they_passed_through(client: TestClient, good: str):
    columns = get(client, f"/api/runs/{good}/curves")["columns"]
    tokens = sum(len(one.completion.ids) for some in view_runs.report(5).groups for one in some.rollouts)
    place = columns["step"].index(5)
    assert columns["tokens_per_second"][place] == tokens / 5.0
    assert columns["seconds/backward"][place] == 1.5


def test_curves_are_columns_with_gaps_where_there_is_no_number(client: TestClient, good: str):
    answer = get(client, f"/api/runs/{good}/curves")
    columns = answer["columns"]
    assert columns["step"] == list(range(9))
    assert columns["entropy"] == [None, 2.0, 1.0, None, *(2.0 / step for step in range(4, 9))]
    assert columns["eval_reward"] == [0.2, *[None] * 7, 0.9]
    # Scores of 0, x, .25 and 1.5; of 1.5 alone; and, a failure left out, of 0 alone.
    assert columns["groups/mixed"][1:] == [1 / 3] * 8
    assert columns["groups/all_right"][1:] == [1 / 3] * 8
    assert columns["groups/all_wrong"][1:] == [1 / 3] * 8
    lengths = sorted(len(one.completion.ids) for some in view_runs.report(1).groups for one in some.rollouts)
    place = 0.9 * 11
    assert columns["completions/length_p90"][1] == pytest.approx(
        lengths[9] + (place - 9) * (lengths[10] - lengths[9])
    )


def test_only_new_steps_are_sent_to_who_knows_the_others(client: TestClient, good: str):
    whole = get(client, f"/api/runs/{good}/curves")
    more = get(client, f"/api/runs/{good}/curves", **{"from": 7, "generation": whole["generation"]})
    assert (more["start"], more["end"], more["columns"]["step"]) == (7, 9, [7, 8])
    none = get(client, f"/api/runs/{good}/curves", **{"from": 9, "generation": whole["generation"]})
    assert none["columns"] == {}
    other = get(client, f"/api/runs/{good}/curves", **{"from": 7, "generation": whole["generation"] + 1})
    assert other["start"] == 0
    nonsense = get(client, f"/api/runs/{good}/curves", **{"from": "-1e9", "generation": "x"})
    assert nonsense["start"] == 0


def test_groups_say_what_is_remarkable_about_them(client: TestClient, good: str):
    answer = get(client, f"/api/runs/{good}/steps/6")
    mixed, right, failed = answer["groups"]
    assert answer["num_rollouts"] == 12
    assert mixed["pass_rate"] == 0.25
    assert mixed["mean"] == pytest.approx((0.6 + 0.25 + 1.5) / 4)
    assert mixed["prompt"] == "How many eggs are in 2 dozen?"
    assert mixed["flags"] == ["truncated"]
    assert (right["spread"], right["flags"]) == (0.0, ["all_right", "truncated"])
    assert failed["flags"] == ["all_wrong", "truncated", "failed", "unscored"]
    assert [line["seen"] for line in get(client, f"/api/runs/{good}/steps/1")["groups"]] == [0, 0, 0]
    assert mixed["seen"] == 3  # sample 2: steps 1, 3 and 5 or 4, by 2 * step + slot


def test_groups_are_found_by_a_text_of_prompt_or_completion(client: TestClient, good: str):
    found = get(client, f"/api/runs/{good}/steps/6", text="TWELVE")
    assert [line["matches"] for line in found["groups"]] == [1, 1, 1]
    assert [
        line["matches"] for line in get(client, f"/api/runs/{good}/steps/6", text="in 3 dozen")["groups"]
    ] == [4]
    assert get(client, f"/api/runs/{good}/steps/6", text="nowhere")["groups"] == []


def test_a_group_shows_its_rollouts_and_how_its_prompt_fared(client: TestClient, good: str):
    group = get(client, f"/api/runs/{good}/steps/3/groups/2")
    assert (group["sample"], group["columns"]) == ("3", {"answer": 36})
    assert [rollout["score"] for rollout in group["rollouts"]] == [0.0, None, 0.0, 0.0]
    assert group["rollouts"][1]["failures"] == {"near": "ValueError: <b>no number</b>"}
    assert [rollout["row"] for rollout in group["rollouts"]] == [8, 9, 10, 11]
    assert group["rollouts"][3]["finish"] == "length"
    steps = [visit["step"] for visit in group["visits"]]
    assert steps == [step for step in range(1, 9) for slot in range(3) if (2 * step + slot) % 5 == 3]


def test_tokens_come_with_their_texts_and_their_numbers(client: TestClient, good: str):
    tokens = get(client, f"/api/runs/{good}/steps/3/rollouts/2")
    text = view_runs.ANSWERS[2]
    assert "".join(tokens["pieces"]) == text + view_runs.END
    assert len(tokens["ids"]) == len(tokens["mask"]) == len(text) + 1
    ratio = math.exp(tokens["logprobs"][5] - tokens["old_logprobs"][5])
    assert ratio == pytest.approx(4 / 3, rel=1e-5)
    assert tokens["ref_logprobs"][1] == pytest.approx(tokens["old_logprobs"][1] - 0.25)
    assert tokens["entropy"][:3] == [0.0, 0.5, 1.0]


def test_held_out_completions_have_no_training_numbers(client: TestClient, good: str):
    listed = get(client, f"/api/runs/{good}/steps/8", held_out=1)
    assert [line["size"] for line in listed["groups"]] == [1, 1, 1]
    tokens = get(client, f"/api/runs/{good}/steps/8/rollouts/0", held_out=1)
    assert tokens["logprobs"] is None
    assert tokens["sampler_logprobs"] is not None
    assert client.get(f"/api/runs/{good}/steps/5", params={"held_out": 1}).status_code == 404


def test_the_run_says_what_it_is_and_what_is_to_be_said_about_it(client: TestClient, good: str):
    info = get(client, f"/api/runs/{good}")
    assert (info["full"], info["clip"], info["lacks"]) == (1.5, {"low": 0.2, "high": 0.2, "cap": None}, [])
    assert [(entry["severity"], entry["steps"]) for entry in info["findings"]] == [
        ("finding", [3]),
        ("warning", [2, 4]),
    ]
    told = info["findings"][0]
    assert told["evidence"] == [{"step": 3, "group": 0, "rollout": 2}, {"step": 3, "group": 1}, {"step": 2}]
    assert (told["since"], told["sure"], told["numbers"]["distinct"]) == ("2", "likely", 0.25)
    assert (info["sample_steps"], info["eval_steps"]) == (list(range(1, 9)), [0, 8])


def test_a_run_from_before_the_file_of_groups_shows_the_same(client: TestClient):
    old = id_of(client, "run_v1")
    columns = get(client, f"/api/runs/{old}/curves")["columns"]
    assert columns["groups/mixed"] == [None, 0.5, 0.5, 1.0, 0.5]
    assert columns["groups/all_right"] == [None, 0.0, 0.0, 0.0, 0.5]
    tokens = get(client, f"/api/runs/{old}/steps/1/rollouts/1")
    assert tokens["pieces"] is None
    assert tokens["ids"] == [10, 11, 12, 13, 14]


def test_a_folder_of_trl_shows_what_it_has_and_names_what_it_lacks(client: TestClient):
    run = id_of(client, "trl-out")
    info = get(client, f"/api/runs/{run}")
    assert (info["status"]["state"], info["status"]["steps"], info["sample_steps"]) == (
        "unknown",
        10,
        [1, 2, 3],
    )
    assert any("tokens" in lack for lack in info["lacks"])
    columns = get(client, f"/api/runs/{run}/curves")["columns"]
    assert columns["step"] == [1, 2, 3]
    assert columns["eval_reward"] == [None, None, 0.4]
    listed = get(client, f"/api/runs/{run}/steps/2")["groups"]
    assert [line["prompt"] for line in listed] == ["user: Say hello.", "user: Count to three."]
    assert listed[0]["scores"] == [0.5, 1.5]
    assert listed[1]["scores"] == [0.0, 1.0]
    group = get(client, f"/api/runs/{run}/steps/2/groups/1")
    assert group["rollouts"][1]["parts"] == {"exact": 1.0, "polite": None}
    assert group["rollouts"][1]["text"] == "assistant: answer 3 of step 2"
    assert group["columns"] == {"noted": "note 2"}
    assert [visit["step"] for visit in group["visits"]] == [1, 2, 3]
    assert get(client, f"/api/runs/{run}/steps/2/rollouts/3")["ids"] == []


def test_metrics_alone_are_curves(client: TestClient):
    run = id_of(client, "plain")
    assert get(client, f"/api/runs/{run}/curves")["columns"] == {
        "step": [1, 2, 3], "reward": [0.5, None, 0.75], "acc": [1, 2, None],
    }  # fmt: skip
    info = get(client, f"/api/runs/{run}")
    assert (info["sample_steps"], info["clip"]) == ([], None)
    assert info["lacks"][0].startswith("samples")


def test_a_broken_file_is_said_and_the_rest_is_shown(client: TestClient, runs_folder):
    run = next(run for run in get(client, "/api/runs")["runs"] if "<" in run["name"])
    assert run["status"]["state"] == "failed"
    answer = client.get(f"/api/runs/{run['id']}/steps/2")
    assert answer.status_code == 404
    assert "can't be read as rollouts" in answer.json()["error"]
    info = get(client, f"/api/runs/{run['id']}")
    assert info["num_broken"] == 2
    assert all(isinstance(entry["text"], str) for entry in info["findings"])
    columns = get(client, f"/api/runs/{run['id']}/curves")["columns"]
    assert columns["step"] == [0, 1, 2, 3, 4]  # half a line of step 5 is left for later
    assert columns["entropy"][4] is None  # beyond all numbers


def test_one_run_that_can_not_be_read_leaves_the_others_in_the_list(tmp_path):
    for name in ("good", "huge", "odd"):
        view_runs.write_run(tmp_path / name, 2)
    (tmp_path / "huge" / "config.toml").write_text(f"[run]\nsteps = {'9' * 5000}\n")
    (tmp_path / "odd" / "config.toml").write_text(f"[run]\nsteps = 1{'0' * 400}\n")
    with TestClient(create_app([tmp_path]), base_url="http://127.0.0.1:8765") as client:
        runs = {run["name"]: run for run in get(client, "/api/runs")["runs"]}
    assert runs.keys() == {"good", "huge", "odd"}
    assert runs["good"]["problem"] is None
    assert runs["good"]["status"]["step"] == 2


def test_a_run_that_goes_on_is_followed_and_one_that_is_resumed_starts_over(tmp_path):
    folder = view_runs.write_run(tmp_path / "runs" / "live", 2, is_over=False)
    client = TestClient(create_app([tmp_path / "runs"]), base_url="http://localhost")
    run = id_of(client, "live")
    assert get(client, f"/api/runs/{run}")["status"]["state"] == "killed"
    first = get(client, f"/api/runs/{run}/curves")
    with set_back(folder, 2) as store:
        store.append_step(view_runs.report(3))
    known = {"from": first["end"], "generation": first["generation"]}
    assert get(client, f"/api/runs/{run}/curves", **known)["columns"]["step"] == [3]
    assert get(client, f"/api/runs/{run}/steps/3")["num_rollouts"] == 12
    with set_back(folder, 1):
        pass
    again = get(client, f"/api/runs/{run}/curves", **{"from": 4, "generation": first["generation"]})
    assert again["generation"] != first["generation"]
    assert again["columns"]["step"] == [0, 1]


def test_a_run_of_a_newer_format_is_listed_and_refused_with_advice(tmp_path):  # P31
    folder = view_runs.write_run(tmp_path / "runs" / "new", 1)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "schema_version": 99}))
    client = TestClient(create_app([tmp_path / "runs"]), base_url="http://localhost")
    (run,) = get(client, "/api/runs")["runs"]
    assert "pip install --upgrade" in run["problem"]
    for path in ("", "/curves", "/steps/1", "/steps/1/groups/0", "/steps/1/rollouts/0"):
        answer = client.get(f"/api/runs/{run['id']}{path}")
        assert answer.status_code == 404
        assert "it has format 99" in answer.json()["error"]
