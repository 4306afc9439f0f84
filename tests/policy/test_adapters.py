import pytest
import torch
from peft import PeftModel
from torch.optim import SGD

from muster.adapters import add_lora, load_adapter
from muster.errors import ConfigError
from muster.policy import Policy
from naive import make_batch
from tiny import save_tiny_model, tiny_model, tiny_tokenizer

BATCH = [(5, [4, 1, 6]), (2, [3])]


def _adapted(family="llama", targets=("q_proj", "v_proj"), seed=0):
    return Policy(
        add_lora(tiny_model(family), rank=4, alpha=8, targets=targets, seed=seed),
        tiny_tokenizer(),
        max_tokens=256,
    )


def _logprobs(policy):
    with torch.no_grad():
        return policy.score(make_batch(BATCH), temperature=1.0).logprobs


def _assert_same(ours, theirs):
    """Up to the last bits, which may depend on where in memory a matrix lies."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def _step(policy):
    """Moves the adapter well away from its start."""
    optimizer = SGD([param for _, param in policy.trainable()], lr=0.1)
    for _ in range(2):
        (-policy.score(make_batch(BATCH), temperature=1.0).logprobs.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("family", "targets"),
    [("llama", ("q_proj", "v_proj")), ("qwen3", ("gate_proj", "o_proj")), ("gpt2", ("c_attn", "c_fc"))],
)
def test_a_fresh_adapter_is_the_model_itself_and_learns(family, targets):
    bare = Policy(tiny_model(family), tiny_tokenizer(), max_tokens=256)
    policy = _adapted(family, targets)
    assert policy.packs
    _assert_same(_logprobs(policy), _logprobs(bare))
    names = [name for name, _ in policy.trainable()]
    assert names
    assert all("lora_" in name for name in names)

    before = {name: param.detach().clone() for name, param in policy.model.named_parameters()}
    _step(policy)
    changed = {
        name for name, param in policy.model.named_parameters() if not torch.equal(param, before[name])
    }
    assert changed == set(names)
    assert float((_logprobs(policy) - _logprobs(bare)).abs().max()) > 0.01


def test_base_weights_get_no_gradient():
    policy = _adapted()
    policy.score(make_batch(BATCH), temperature=1.0).logprobs.sum().backward()
    for name, param in policy.model.named_parameters():
        assert (param.grad is not None) == ("lora_" in name)


def test_the_reference_of_a_fresh_adapter_is_the_model_without_it():
    policy = _adapted()
    reference = policy.snapshot()
    start = _logprobs(policy)
    _step(policy)
    with policy.using(reference):
        _assert_same(_logprobs(policy), start)
    assert not torch.equal(_logprobs(policy), start)


def test_the_reference_of_a_trained_adapter_is_the_policy_at_start(tmp_path):
    # B58: "adapter off" would be the wrong reference here, and KL large from the first step.
    trained = _adapted()
    _step(trained)
    trained.model.save_pretrained(str(tmp_path))
    policy = Policy(load_adapter(tiny_model(), tmp_path), tiny_tokenizer(), max_tokens=256)
    _assert_same(_logprobs(policy), _logprobs(trained))

    reference = policy.snapshot()
    with policy.using(reference):
        kl = (_logprobs(policy) - _logprobs(trained)).abs().max()
    assert float(kl) < 1e-6
    assert [name for name, _ in policy.trainable()] == [name for name, _ in trained.trainable()]
    assert isinstance(policy.model, PeftModel)
    with policy.model.disable_adapter():
        off = _logprobs(policy)
    assert float((off - _logprobs(policy)).abs().max()) > 0.01
    _step(policy)
    assert not torch.equal(_logprobs(policy), _logprobs(trained))


def test_an_adapter_trained_with_dropout_goes_on_without(tmp_path):
    trained = _adapted()
    _step(trained)
    trained.model.save_pretrained(str(tmp_path))
    config = tmp_path / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_dropout": 0.0', '"lora_dropout": 0.5'))
    policy = Policy(load_adapter(tiny_model(), tmp_path), tiny_tokenizer(), max_tokens=256)
    _assert_same(_logprobs(policy), _logprobs(trained))


@pytest.mark.parametrize("target", ["query", "self_attn", "norm", "", "lm_head"])
def test_a_target_that_is_no_linear_layer_is_answered_with_those_there_are(target):
    with pytest.raises(ConfigError) as caught:
        add_lora(tiny_model(), rank=4, alpha=8, targets=["q_proj", target], seed=0)
    message = str(caught.value)
    assert f"model.lora.targets names ['{target}'], which this llama model lacks" in message
    assert "['down_proj', 'gate_proj', 'k_proj', 'o_proj', 'q_proj', 'up_proj', 'v_proj']" in message


def test_gpt2_has_names_of_its_own():
    with pytest.raises(ConfigError, match="'c_attn', 'c_fc', 'c_proj'"):
        add_lora(tiny_model("gpt2"), rank=4, alpha=8, targets=["q_proj"], seed=0)


def test_an_adapter_follows_from_the_seed_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (_adapted(seed=seed).snapshot() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_folder_without_an_adapter_is_refused(tmp_path):
    folder = save_tiny_model(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"holds no adapter_config\.json"):
        load_adapter(tiny_model(), folder)


def test_an_adapter_in_a_pickle_file_is_refused(tmp_path):
    _adapted().model.save_pretrained(str(tmp_path))
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"holds no adapter_model\.safetensors"):
        load_adapter(tiny_model(), tmp_path)


def test_an_adapter_of_another_model_is_refused_by_name(tmp_path):
    _adapted().model.save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match=r"doesn't fit this llama model"):
        load_adapter(tiny_model(hidden_size=64), tmp_path)
    with pytest.raises(ConfigError, match=r"doesn't fit this gpt2 model"):
        load_adapter(tiny_model("gpt2"), tmp_path)
