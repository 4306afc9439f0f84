"""What servers do wrong, and what becomes of it: asked again, asked of another, or told as it is."""

import time

import pytest

from fake_vllm import POLICIES, FakeVllm, adapted, flat, gap, moved, policy_of, prompts, sampling, served
from muster.engines import servers, vllm
from muster.engines.options import VllmOptions
from muster.engines.servers import Fleet, Server
from muster.engines.vllm import VllmEngine
from muster.engines.wire import FaultError, Wire
from muster.errors import EngineError, EngineLostError, ModelError
from muster.loop import train
from muster.selfcheck import self_check
from tiny import tiny_policy
from toy_rewards import low_bytes
from toy_run import toy_items, toy_run


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    """Pauses of a hundredth: a unit of time, not a behaviour."""
    monkeypatch.setattr(servers, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(servers, "MAX_PAUSE_S", 0.05)
    monkeypatch.setattr(servers, "WATCH_S", 0.05)


PASSING = ["die", "half", "500", "nan", "nothing", "short", "missing", "fewer", "abort", "stale"]


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("count", [1, 2])
def test_what_fails_once_is_asked_again_and_comes_out_the_same(fault, count):
    with served(count=count) as (engine, fakes):
        expected = engine.generate(prompts(), sampling())
        for fake in fakes:
            fake.faults.append(fault)
        again = engine.generate(prompts(), sampling())
        assert [c.ids for c in flat(again)] == [c.ids for c in flat(expected)]
        assert gap(policy_of(engine), prompts(), again) < 1e-4
        assert not any(fake.faults for fake in fakes)


SAYS = {
    "nan": "a logprob is nan",
    "nothing": "a logprob is -9999.0",
    "short": "logprobs are of the tokens",
    "missing": "`token_ids` is None",
    "fewer": "4 completions were asked for, and 3 came",
    "abort": "ended with 'abort'",
    "half": "JSON that breaks off",
    "die": "broke the connection off",
    "500": "EngineDeadError",
    "stale": "sampled by weights 'muster-old'",
}


@pytest.mark.parametrize("fault", SAYS)
def test_what_fails_for_good_is_told_with_its_cause(fault):
    with served() as (engine, [fake]):
        fake.faults.extend([fault] * 50)
        with pytest.raises(EngineLostError, match=f"failed {vllm.MAX_TRIES} times") as caught:
            engine.generate(prompts(1), sampling())
        assert SAYS[fault] in str(caught.value)
        assert fake.url in str(caught.value)


def test_a_stale_adapter_is_refused_too():
    with served(adapted) as (engine, [fake]):
        fake.faults.extend(["stale"] * 50)
        with pytest.raises(EngineLostError, match="'muster-old', and 'muster-"):
            engine.generate(prompts(1), sampling())


def test_a_request_that_the_server_refuses_is_not_asked_again():
    with served() as (engine, [fake]):
        fake.faults.append("400")
        with pytest.raises(EngineError, match=r"max_tokens is too large.*muster engine serve"):
            engine.generate(prompts(1), sampling())
        assert len(fake.bodies) == 1


def test_an_adapter_that_the_server_will_not_take_is_told_at_once():
    with served(adapted) as (engine, [fake]):
        fake.takes_adapters = False
        with pytest.raises(EngineError, match=r"the adapter of version 0 can't be loaded.*max_lora_rank 16"):
            engine.generate(prompts(1), sampling())
        assert fake.calls.count("/v1/load_lora_adapter") == 1


@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_a_server_that_starts_anew_gets_the_current_weights_before_its_completions_count(make_policy):
    with served(make_policy) as (engine, [fake]):
        engine.generate(prompts(), sampling())
        moved(policy_of(engine))
        engine.load_weights(policy_of(engine).trainable(), 1)
        engine.generate(prompts(), sampling())
        fake.stop()
        fake.start()
        groups = engine.generate(prompts(), sampling())
        assert gap(policy_of(engine), prompts(), groups) < 1e-4
        assert {done.version for done in flat(groups)} == {1}


@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_others_take_the_share_of_a_server_that_dies_and_it_returns_with_the_weights_of_now(make_policy):
    with served(make_policy, count=2) as (engine, [one, _]):
        engine.generate(prompts(), sampling())
        one.stop()
        moved(policy_of(engine))
        engine.load_weights(policy_of(engine).trainable(), 1)
        groups = engine.generate(prompts(), sampling())
        assert gap(policy_of(engine), prompts(), groups) < 1e-4
        moved(policy_of(engine), by=0.02)
        engine.load_weights(policy_of(engine).trainable(), 2)
        one.start()
        one.bodies.clear()
        groups = engine.generate(prompts(6), sampling())
        assert gap(policy_of(engine), prompts(6), groups) < 1e-4
        assert one.bodies
        assert {done.version for done in flat(groups)} == {2}


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("make_policy", POLICIES.values(), ids=POLICIES)
def test_a_server_whose_engine_dies_while_it_takes_weights_is_left_until_it_is_back(make_policy, is_silent):
    with served(make_policy, count=2) as (engine, [one, other]):
        engine.generate(prompts(), sampling())
        one.dies_at, one.dies_silently = {"/collective_rpc", "/v1/load_lora_adapter"}, is_silent
        moved(policy_of(engine))
        engine.load_weights(policy_of(engine).trainable(), 1)
        began = time.monotonic()
        groups = engine.generate(prompts(), sampling())
        assert time.monotonic() - began < 15, "nobody waits for the whole of timeout_s, which is 20 here"
        assert gap(policy_of(engine), prompts(), groups) < 1e-4
        assert one.is_dead
        one.stop()
        other.stop()
        one.start()
        groups = engine.generate(prompts(), sampling())
        assert gap(policy_of(engine), prompts(), groups) < 1e-4
        assert {done.version for done in flat(groups)} == {1}


def test_a_server_that_is_slow_is_left_for_another():
    with served(count=2, timeout_s=0.5) as (engine, [slow, quick]):
        engine.generate(prompts(), sampling())
        slow.faults.extend(["slow"] * 50)
        groups = engine.generate(prompts(), sampling())
        assert gap(policy_of(engine), prompts(), groups) < 1e-4
        assert quick.bodies


def test_a_run_whose_servers_are_gone_stops_between_two_steps_and_says_why():
    with served(count=2, patience_s=0.2) as (engine, fakes):
        run = toy_run(policy_of(engine), low_bytes, engine=engine, num_steps=4)
        reports = train(run)
        next(reports)
        drawn, version = run.state.drawn, run.state.version
        for fake in fakes:
            fake.stop()
        with pytest.raises(EngineLostError, match=r"no server has answered for 0\.2 s") as caught:
            next(reports)
        assert all(f"{fake.url} refuses connections" in str(caught.value) for fake in fakes)
        assert (run.state.step, run.state.drawn, run.state.version) == (1, drawn, version)
        for fake in fakes:
            fake.start()
        assert [report.step for report in train(run)] == [2, 3, 4]


def test_a_server_that_says_logprobs_before_temperature_is_found_before_the_run():
    with served() as (engine, [fake]):
        fake.is_raw = True
        with pytest.raises(ModelError, match="processed_logprobs"):
            self_check(
                policy_of(engine), engine, toy_items(3), sampling=sampling(temperature=0.6), reference=None,
                tolerance=1e-3,
            )  # fmt: skip


def test_the_next_request_goes_to_the_server_with_the_fewest_and_never_beyond_its_limit():
    fleet = Fleet([Server(Wire(f"http://h{n}"), 1.0) for n in range(2)], max_requests=2, patience_s=1.0)
    taken = [fleet.take() for _ in range(4)]
    assert sorted(server.url for server in taken) == ["http://h0", "http://h0", "http://h1", "http://h1"]
    fleet.answered(taken[0])
    assert fleet.take() is taken[0]


def test_a_server_that_failed_is_left_alone_twice_as_long_each_time(monkeypatch):
    monkeypatch.setattr(servers, "FIRST_PAUSE_S", 0.25)
    monkeypatch.setattr(servers, "MAX_PAUSE_S", 1.5)
    now = [100.0]
    one, two = (Server(Wire(f"http://h{n}"), 1.0) for n in range(2))
    fleet = Fleet([one, two], max_requests=9, patience_s=30.0, now=lambda: now[0])
    for pause in (0.25, 0.5, 1.0, 1.5, 1.5):
        first, second = fleet.take(), fleet.take()
        assert {first, second} == {one, two}
        fleet.failed(one, FaultError("broken"))
        fleet.answered(two)
        assert one.due == pytest.approx(now[0] + pause)
        now[0] = one.due - 0.01
        assert fleet.take() is two
        fleet.answered(two)
        now[0] = one.due + 0.01


def test_an_answer_to_what_was_asked_before_a_fault_does_not_say_that_the_server_is_well():
    """Its weights may be gone since: one request alone tries it, not all that wait."""
    server = Server(Wire("http://h0"), 1.0)
    fleet = Fleet([server], max_requests=9, patience_s=30.0, now=lambda: 100.0)
    server.held = "weights 1"
    assert [fleet.take(), fleet.take()] == [server, server]
    fleet.failed(server, FaultError("broken"))
    fleet.answered(server)
    assert server.fault == "broken"
    server.due, server.held = 0.0, "weights 1"
    fleet.take()
    fleet.answered(server)
    assert server.fault is None


def test_a_port_that_nobody_listens_on_is_told_as_such():
    engine = VllmEngine(tiny_policy(), VllmOptions(urls=("http://127.0.0.1:9",), patience_s=0.0))
    with pytest.raises(EngineLostError, match=r"http://127\.0\.0\.1:9 refuses connections"):
        engine.generate(prompts(1), sampling())
    engine.close()


def test_a_server_without_the_calls_is_told_what_it_lacks():
    fake = FakeVllm(tiny_policy)
    fake.lacks.update({"/update_weight_version"})
    engine = VllmEngine(tiny_policy(), VllmOptions(urls=(fake.url,)))
    with pytest.raises(EngineError, match=r"update_weight_version with HTTP 404.*muster engine serve"):
        engine.generate(prompts(1), sampling())
    engine.close()
    fake.stop()


def test_an_answer_from_while_somebody_else_loads_is_asked_for_again_without_a_load():
    with served() as (engine, [fake]):
        engine.generate(prompts(), sampling())
        assert fake.calls.count("/collective_rpc") == 1
        fake.faults.append("loading")
        done = flat(engine.generate(prompts(), sampling()))
        assert len(done) == 8
        assert fake.calls.count("/collective_rpc") == 1
