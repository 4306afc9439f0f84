"""The pages on recipes say what the code does: every snippet is run, every name is looked up."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
import torch

from muster.algo.build import AXES, build, options
from muster.algo.gates import GATES
from muster.algo.recipes import RECIPES
from muster.config.sections import AlgoConfig

PAGES = Path(__file__).parents[2] / "docs" / "recipes"
INDEX = (PAGES / "index.md").read_text()
SNIPPETS = [
    (page.name, snippet)
    for page in sorted(PAGES.glob("*.md"))
    for snippet in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
]


def section(name):
    return re.split(r"^### ", INDEX.split(f"### `{name}`", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def choices(algo):
    return {axis: choice for axis, choice in algo.items() if axis in AXES}


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_has_a_page_with_formula_functions_metrics_and_toml(name):
    text = (PAGES / f"{name}.md").read_text()
    assert f'recipe = "{name}"' in text
    for part in ("\nFunctions: ", "**Watch.**", "**A healthy run.**", "loss ", "arXiv:"):
        assert part in text
    for path in re.findall(r"`(muster\.[\w.]+)`", text):
        module, _, function = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function))
    for used in ("advantage", "weights", "objective"):
        function = getattr(RECIPES[name], used)
        inner = getattr(function, "func", function)
        assert f"`{inner.__module__}.{inner.__name__}`" in text


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS)
def test_each_snippet_builds_a_recipe(page, snippet, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_objectives.py").write_text(re.findall(r"```python\n(.*?)```", INDEX, re.DOTALL)[0])
    algo = tomllib.loads(snippet)["algo"]
    AlgoConfig.model_validate(algo)
    assert build(algo["recipe"], choices(algo)).name == algo["recipe"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_options_on_a_page_are_those_of_the_recipe(name):
    for page, snippet in SNIPPETS:
        algo = tomllib.loads(snippet)["algo"]
        if page == f"{name}.md" and "objective" in algo:
            written = {k: v for k, v in algo["objective"].items() if k != "use"}
            assert written.items() <= options(RECIPES[name].objective).items()


def test_the_index_names_every_choice_and_option_with_its_default():
    for axis, named in AXES.items():
        text = section(axis)
        for name, function in named.items():
            assert f"`{name}`" in text, (axis, name)
            for option, default in options(function).items():
                assert f"`{option}`" in text, (axis, name, option)
                if isinstance(default, float):
                    (written,) = re.findall(rf"`{option}` ([\d.e-]+)", row_of(text, name))
                    assert float(written) == default, (axis, name, option)


def row_of(text, name):
    return next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))


def test_the_table_of_recipes_is_that_of_the_code():
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(\1\.md\) \| `(\w+)` \| `(\w+)`.*? \| `(\w+)` \|", INDEX, re.MULTILINE
    )
    named = [
        (name, _name(recipe.advantage), _name(recipe.objective), _name(recipe.weights))
        for name, recipe in RECIPES.items()
    ]
    assert rows == named
    assert all(recipe.gate is GATES["none"]() for recipe in RECIPES.values())


def _name(function):
    return getattr(function, "func", function).__name__


def test_the_function_of_ones_own_lets_a_tenth_of_the_gradient_through(make_tokens, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_objectives.py").write_text(re.findall(r"```python\n(.*?)```", INDEX, re.DOTALL)[0])
    leaky = build("grpo", {"objective": "my_objectives.py:leaky"}).objective
    now = torch.tensor([[2.0]], dtype=torch.float64).log().requires_grad_()
    (gradient,) = torch.autograd.grad(leaky(make_tokens(now, old=[[0.0]])).sum(), now)
    assert gradient.item() == pytest.approx(-0.2)  # a tenth of -ratio


def test_links_between_pages_lead_somewhere():
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (PAGES / target).is_file(), (page.name, target)
