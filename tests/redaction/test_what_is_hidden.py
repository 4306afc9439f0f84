"""What counts as a secret, and that the rest of a text stays as it is."""

import time

import pytest

from muster.cli.flags import as_mapping
from muster.config import from_mapping
from muster.errors import ConfigError
from muster.redaction import hidden, redacted, redacted_command, without_secrets

# None of these was ever anyone's; they are put together here so that no scanner takes them for real.
OPENAI = "sk-" + "proj-Zx81Qw" * 3
HUGGING_FACE = "hf_" + "QwErTyUiOp" * 3
GITHUB = "ghp_" + "0123456789ab" * 3
AMAZON = "AKIA" + "ABCDEFGHIJKLMNOP"
SLACK = "xoxb-" + "123456789012-abc"
WEB_TOKEN = "eyJ" + "hbGciOiJIUzI1." + "eyJzdWIiOiIx." + "c2lnbmF0dXJl"
GOOGLE = "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw"


@pytest.mark.parametrize("secret", [OPENAI, HUGGING_FACE, GITHUB, AMAZON, SLACK, WEB_TOKEN, GOOGLE])
@pytest.mark.parametrize("around", ["{}", "401 for {}: no", "('{}',)", "https://host/x?k={}&a=1", "a\n{}\nb"])
def test_keys_of_known_forms_are_hidden_wherever_they_stand(secret, around):
    text = around.format(secret)
    assert secret not in hidden(text)
    assert hidden(text) == around.format("***")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ada:pa55@host:80/v1", "https://***@host:80/v1"),
        ("https://tok_3n@host/v1", "https://***@host/v1"),
        ("Authorization: Bearer abc123def456", "Authorization: Bearer ***"),
        ("{'Authorization': 'Bearer abc123def456'}", "{'Authorization': 'Bearer ***'}"),
    ],
)
def test_passwords_in_addresses_and_headers_are_hidden(text, shown):
    assert hidden(text) == shown


def test_a_header_is_hidden_with_the_word_before_its_value():
    assert redacted("Authorization: Basic onlyletters") == "Authorization: ***"
    assert redacted("{'Authorization': 'Bearer abc123def456'}") == "{'Authorization': '***'}"


@pytest.mark.parametrize(
    "text",
    [
        "api_key = \"hunter2\"", "{'x-api-key': 'hunter2'}", "?api_key=hunter2&b=1", "password: hunter2",
        "DB_PASSWORD=hunter2", "client_secret='hunter2',", '{"access_token":"hunter2"}',
    ],
)  # fmt: skip
def test_what_stands_behind_a_secrets_name_is_hidden_in_logs(text):
    assert "hunter2" not in redacted(text)
    assert "***" in redacted(text)


def test_values_of_the_environment_are_hidden_by_the_names_of_their_variables(monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MY_SECRET_2", "DB_PASSWORD"):
        monkeypatch.setenv(name, "planted-value-1")
        assert hidden("x planted-value-1 y") == "x *** y"
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "planted-value-1")
    monkeypatch.setenv("SOME_KEY", "false")
    assert hidden("planted-value-1 false") == "planted-value-1 false"


@pytest.mark.parametrize(
    "text",
    [
        "step 3: reward 0.5", "the password is asked for", "mail ada@example.org", "https://host/v1",
        "max_tokens = 256", "a basic understanding", "sk-short", "bearer of news", "key: value",
        "tokens: 12", "http://host/@user",
    ],
)  # fmt: skip
def test_other_texts_stay(text):
    assert redacted(text) == text


def test_plain_data_is_searched_to_its_depth():
    given = {"a": [{"api_key": "hunter2"}, OPENAI], "b": 1, "headers": {"Authorization": "x"}, "t": ("u",)}
    shown = {"a": [{"api_key": "***"}, "***"], "b": 1, "headers": {"Authorization": "***"}, "t": ["u"]}
    assert without_secrets(given) == shown


def test_a_command_line_shows_no_value_of_a_secret_flag():
    command = ["muster", "train", "--x.api_key", "hunter2", "--x.password=hunter2", "--optim.lr", "1e-6"]
    assert redacted_command(command) == [
        "muster", "train", "--x.api_key", "***", "--x.password=***", "--optim.lr", "1e-6",
    ]  # fmt: skip


NEEDED = {"model": {"path": "m"}, "data": {"path": "d.csv"}, "reward": {"use": "number"}}


@pytest.mark.parametrize(
    ("section", "values", "path"),
    [
        ("reward", {"options": {"number": {"api_key": "hunter2"}}}, "reward.options.number.api_key"),
        (
            "reward",
            {"options": {"number": {"headers": {"Authorization": "hunter2"}}}},
            "reward.options.number.headers.Authorization",
        ),
        ("reward", {"options": {"number": {"list": ["a", OPENAI]}}}, "reward.options.number.list"),
        ("reward", {"options": {"number": {"url": "https://u:hunter2@host/"}}}, "reward.options.number.url"),
        ("data", {"path": "https://u:hunter2@host/d.csv"}, "data.path"),
        ("data", {"chat_template_kwargs": {"auth_token": "hunter2"}}, "data.chat_template_kwargs.auth_token"),
        ("engine", {"options": {"secret": "hunter2"}}, "engine.options.secret"),
        ("algo", {"objective": {"use": "clip", "password": "hunter2"}}, "algo.objective.password"),
        ("reward", {"api_key": "hunter2"}, "reward.api_key"),
        ("model", {"path": OPENAI}, "model.path"),
    ],
)
def test_a_secret_in_a_configuration_is_refused_by_its_path_and_not_shown(section, values, path):
    given = {**NEEDED, section: {**NEEDED.get(section, {}), **values}}
    with pytest.raises(ConfigError) as caught:
        from_mapping(given)
    said = str(caught.value)
    assert path in said
    assert "hunter2" not in said
    assert OPENAI not in said
    assert "***" in said


def test_another_mistake_in_the_same_table_does_not_show_the_secret():
    options = {"number": {"api_key": "hunter2"}, "other": {"password": "hunter2"}}
    with pytest.raises(ConfigError) as caught:
        from_mapping({**NEEDED, "reward": {"use": "number", "weights": "hunter2-no", "options": options}})
    assert "hunter2'" not in str(caught.value)
    assert '"hunter2"' not in str(caught.value)


def test_a_secret_of_the_environment_written_into_a_configuration_is_refused(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "planted-value-1")
    with pytest.raises(ConfigError, match=r"data\.system is \*\*\*; allowed: no secret"):
        from_mapping({**NEEDED, "data": {"path": "d.csv", "system": "Use planted-value-1."}})


def test_the_name_of_a_variable_is_no_secret():
    options = {"number": {"key_env": "OPENAI_API_KEY", "tolerance": 1}}
    assert from_mapping({**NEEDED, "reward": {"use": "number", "options": options}}).reward.options


def test_a_flag_given_twice_does_not_show_a_secret():
    with pytest.raises(ConfigError, match=r"is given twice: \*\*\* and \*\*\*"):
        as_mapping(["reward.options.r.api_key=hunter2", "reward.options.r.api_key=hunter3"])


@pytest.mark.parametrize(
    "part",
    [
        "eyJ-",
        "eyJ",
        "sk-",
        "://a",
        "://a@",
        "bearer ",
        "basic  ",
        "password ",
        "a_",
        "api_key=",
        "-----BEGIN A ",
        "'",
    ],
)
def test_no_text_makes_the_search_slow(part):
    text = part * (2**19 // len(part))
    started = time.process_time()
    redacted(text)
    redacted(text.replace(" ", "  "))
    assert time.process_time() - started < 5
