from functools import partial

import pytest
import torch

from muster.algo.advantages import center
from muster.algo.build import AXES, build, options
from muster.algo.gates import Gate
from muster.algo.objectives import clip
from muster.algo.recipes import RECIPES, loss
from muster.errors import ConfigError


def test_a_recipe_by_name_is_the_recipe():
    assert all(build(name) is not None and build(name) == recipe for name, recipe in RECIPES.items())


def test_a_choice_is_replaced_by_name():
    recipe = build("grpo", {"advantage": "center", "kl": "k3"})
    assert recipe.advantage is center
    assert recipe.kl is AXES["kl"]["k3"]


def test_a_table_binds_options_and_whole_numbers_become_the_type_of_the_signature():
    recipe = build("grpo", {"objective": {"use": "clip", "low": 0.1, "cap": 3}})
    assert isinstance(recipe.objective, partial)
    assert recipe.objective.func is clip
    assert options(recipe.objective) == {"low": 0.1, "high": 0.2, "cap": 3.0}
    assert type(options(recipe.objective)["cap"]) is float


def test_a_gate_is_made_from_its_options(make_tokens):
    gate = build("grpo", {"gate": {"use": "off_policy_sequence", "max_drift": 0.5}}).gate
    assert isinstance(gate, Gate)
    assert not gate.keep(make_tokens([[-1.0]], sampler=[[0.0]], advantages=[-1.0]), 0.0).any()
    assert build("grpo", {"gate": "top_entropy"}).gate.threshold is not None


def test_a_function_of_ones_own_is_passed_or_named(tmp_path, monkeypatch):
    (tmp_path / "my_advantages.py").write_text(
        "def raw(rewards, *, scale: float = 1.0):\n    return rewards * scale\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = build("grpo", {"advantage": {"use": "my_advantages:raw", "scale": 2}})
    assert named.advantage(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
    assert build("grpo", {"advantage": "my_advantages:raw"}).advantage(torch.ones(1, 2)).sum() == 2
    assert build("grpo", {"advantage": abs}).advantage is abs


def refused(name, choices):
    with pytest.raises(ConfigError) as caught:
        build(name, choices)
    return str(caught.value)


def test_an_unknown_recipe_is_refused_with_the_nearest():
    assert refused("grop", {}) == ("algo.recipe is 'grop', but no recipe has that name. Did you mean 'grpo'?")
    assert "There are: grpo, dr_grpo, dapo" in refused("zzzz", {})


@pytest.mark.parametrize(
    ("axis", "choice", "said"),
    [
        ("objectiv", "clip", "algo.objectiv isn't a choice of a recipe. Did you mean 'objective'?"),
        ("objective", "clipp", "is 'clipp', but no objective has that name. Did you mean 'clip'?"),
        ("gate", lambda: 3, "this one gives 3"),
        ("gate", {"share": 0.3}, "algo.gate.use is None, but must be a name or `module:function`"),
        ("kl", {"use": 3}, "algo.kl.use is 3, but must be a name or `module:function`"),
        ("kl", "no_such_module:f", "algo.kl: 'no_such_module:f': there is no module"),
        ("kl", "math:no_such", "algo.kl: 'math:no_such': math has no 'no_such'."),
        ("kl", "math:pi", "algo.kl: 'math:pi' is float, not a function."),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_with_the_nearest(axis, choice, said):
    assert said in refused("grpo", {axis: choice})


@pytest.mark.parametrize(
    ("axis", "use", "option", "value", "said"),
    [
        (
            "objective",
            "clip",
            "hihg",
            0.3,
            "algo.objective.hihg isn't an option of 'clip'. Did you mean 'high'?",
        ),
        (
            "advantage",
            "center",
            "eps",
            1e-6,
            "algo.advantage.eps isn't an option of 'center'. It has no options.",
        ),
        (
            "objective",
            "clip",
            "low",
            "a",
            "algo.objective.low is 'a', but must be a number, finite and not negative.",
        ),
        (
            "objective",
            "clip",
            "cap",
            "a",
            "algo.objective.cap is 'a', but must be a number, finite and not negative.",
        ),
        ("objective", "clip", "low", -0.2, "algo.objective.low is -0.2, but must be"),
        ("objective", "clip", "low", float("nan"), "algo.objective.low is nan, but must be"),
        ("objective", "clip", "low", True, "algo.objective.low is True, but must be"),
        ("correction", "truncate", "level", "word", "must be one of 'token', 'sequence', 'sequence_mean'."),
        ("kl", "k3", "ratio", "detachd", "must be one of 'none', 'detached', 'differentiable'."),
        ("gate", "top_entropy", "share", 1.5, "share is 1.5"),
    ],
)
def test_an_option_that_does_not_fit_the_signature_is_refused(axis, use, option, value, said):
    assert said in refused("grpo", {axis: {"use": use, option: value}})


@pytest.mark.parametrize(("axis", "name"), [(axis, name) for axis, named in AXES.items() for name in named])
@pytest.mark.parametrize("recipe", ["grpo", "vespo"])
def test_every_value_on_offer_makes_a_step(make_tokens, make_totals, axis, name, recipe):  # B24
    built = build(recipe, {axis: name})
    now = torch.tensor([[-1.0, -2.0], [-0.5, -0.7]], dtype=torch.float64, requires_grad=True)
    tokens = make_tokens(
        now,
        old=now.detach() - 0.1,
        ref=now.detach() - 0.2,
        entropy=torch.ones(2, 2, dtype=torch.float64),
        advantages=built.advantage(torch.tensor([[1.0, 0.0]])).flatten().tolist(),
    )
    threshold = built.gate.threshold(tokens.entropy.flatten()) if built.gate.threshold else 0.0
    value = loss(tokens, built, make_totals(tokens.mask), kl_coef=0.1, gate_threshold=threshold)
    (gradient,) = torch.autograd.grad(value, now)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
