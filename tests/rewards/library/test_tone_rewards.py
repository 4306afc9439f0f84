from typing import Literal

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, PreTrainedTokenizerFast

from muster.errors import ConfigError, RewardError
from muster.rewards import load_rewards
from muster.rewards.classifier import class_scores
from muster.rewards.language import language
from muster.rewards.sentiment import sentiment

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4}
ENGLISH = "The house stands near the river, and in the morning the children walk to school. "
GERMAN = "Das Haus steht nahe am Fluss, und am Morgen gehen die Kinder zu Fuß in die Schule. "


def config(labels: dict[int, str]) -> BertConfig:
    return BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=32,
        id2label=labels,
        label2id={name: index for index, name in labels.items()},
        pad_token_id=0,
    )


def save_tokenizer(folder: str) -> None:
    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        folder
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A classifier of random weights, large enough that its classes differ by text."""
    path = str(tmp_path_factory.mktemp("classifier"))
    torch.manual_seed(0)
    model = BertForSequenceClassification(config({0: "NEGATIVE", 1: "POSITIVE", 2: "mixed"}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20.0)
    model.save_pretrained(path)
    save_tokenizer(path)
    return path


def scores(
    folder,
    texts,
    label=None,
    output: Literal["probability", "logit"] = "probability",
    batch_size=16,
):
    return class_scores(texts, model=folder, label=label, output=output, batch_size=batch_size, device="cpu")


def test_the_probability_is_that_of_the_models_own_forward(folder):
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[2, 4]])).logits[0]
    expected = logits.softmax(dim=0)
    assert scores(folder, ["good film"]) == pytest.approx([expected[1].item()], abs=1e-6)
    assert scores(folder, ["good film"], label="negative") == pytest.approx([expected[0].item()], abs=1e-6)
    assert scores(folder, ["good film"], label="2", output="logit") == pytest.approx(
        [logits[2].item()], abs=1e-5
    )


def test_batches_and_order_change_nothing(folder):
    texts = ["good", "bad film " * 9, "", "film", "good " * 1000, "bad\0 \ud800"]
    single = [scores(folder, [text])[0] for text in texts]
    assert scores(folder, texts, batch_size=4) == pytest.approx(single, abs=1e-5)
    assert len({round(score, 3) for score in single}) > 2


def test_the_reward_reads_chats_texts_and_prompts(folder):
    chat = [[{"role": "assistant", "content": "good"}], [{"role": "assistant", "content": "bad"}]]
    options = {"model": folder, "device": "cpu"}
    assert sentiment([], chat, **options) == pytest.approx(scores(folder, ["good", "bad"]), abs=1e-6)
    assert sentiment(["bad "], ["good"], over="sample", **options) == pytest.approx(
        scores(folder, ["bad good"]), abs=1e-6
    )
    prompts = [[{"role": "user", "content": "bad "}]]
    assert sentiment(prompts, [chat[0]], over="sample", **options) == pytest.approx(
        scores(folder, ["bad good"]), abs=1e-6
    )


def test_it_runs_as_a_reward_in_the_process_of_the_run(folder, score_of):
    value = score_of("sentiment", "good", {"model": folder, "device": "cpu"}).value
    assert value == pytest.approx(scores(folder, ["good"])[0], abs=1e-6)
    [reward] = load_rewards("sentiment")
    assert reward.runs_in_main
    assert reward.convention == "batch"


def test_an_unknown_class_names_the_known_ones(folder):
    with pytest.raises(RewardError, match="NEGATIVE, POSITIVE, mixed"):
        scores(folder, ["good"], label="happy")


def test_a_model_with_one_class_gives_its_logit_or_its_sigmoid(tmp_path):
    model = BertForSequenceClassification(config({0: "score"}))
    model.save_pretrained(tmp_path)
    save_tokenizer(str(tmp_path))
    [logit] = scores(str(tmp_path), ["good"], output="logit")
    assert scores(str(tmp_path), ["good"]) == pytest.approx([1 / (1 + 2.718281828**-logit)], abs=1e-5)


def test_a_model_that_was_not_trained_to_classify_is_refused(tmp_path):
    BertForMaskedLM(config({0: "a", 1: "b"})).save_pretrained(tmp_path)
    save_tokenizer(str(tmp_path))
    with pytest.raises(RewardError, match="would be random"):
        scores(str(tmp_path), ["good"])


def test_a_folder_that_holds_no_model_is_named(tmp_path):
    with pytest.raises(RewardError, match="can't be loaded as a sequence-classification model"):
        scores(str(tmp_path / "absent"), ["good"])


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("I loved this film, it was wonderful!", 0.7, 1.0),
        ("I hated this film, it was terrible.", -1.0, -0.7),
        ("not good", -0.6, -0.1),
        ("The train leaves at nine.", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("\ud800\0", 0.0, 0.0),
        ("good" * 1000, 0.0, 0.0),
        ("great " * 100_000, 0.9, 1.0),
        ("😀", 0.1, 1.0),
    ],
)
def test_the_lexicon_tells_the_tone_offline(text, low, high):
    [score] = sentiment([], [text])
    assert low <= score <= high
    assert sentiment([], [text], label="negative") == [-score]


def test_the_lexicon_knows_two_labels():
    with pytest.raises(ValueError, match="positive and negative"):
        sentiment([], ["good"], label="happy")


@pytest.mark.parametrize(
    ("text", "wanted", "low", "high"),
    [
        (ENGLISH, "en", 0.9, 1.0),
        (GERMAN, "de", 0.9, 1.0),
        (GERMAN, "en", 0.0, 0.05),
        (ENGLISH, "zh", 0.0, 0.05),
        ("今天天气很好，我们去公园散步吧，然后在河边的餐馆吃午饭。", "en", 0.0, 0.05),
        (ENGLISH * 100, "en", 0.9, 1.0),
        (ENGLISH * 100 + GERMAN * 100, "en", 0.0, 0.1),
        (ENGLISH * 100 + GERMAN * 150 + ENGLISH * 100, "en", 0.0, 0.1),
        (ENGLISH * 100 + "1 2 3 " * 1000, "en", 0.9, 1.0),
        ("", "en", 0.0, 0.0),
        ("42", "en", 0.0, 0.0),
        ("Yes.", "en", 0.0, 0.0),
        ("\ud800" * 100, "en", 0.0, 0.0),
        ("\0" * 100, "en", 0.0, 0.0),
        ("x" * 1_000_000, "en", 0.0, 0.1),
    ],
)
def test_the_language_is_told_from_all_of_the_text(text, wanted, low, high):
    assert low <= language(text, wanted=wanted) <= high


def test_a_choice_of_languages_tells_relatives_apart():
    text = "我们去公园散步吧，今天天气很好。"
    assert language(text, wanted="zh", min_letters=5) < 0.95
    assert language(text, wanted="zh", among=("en", "ja"), min_letters=5) > 0.99


@pytest.mark.parametrize("options", [{"wanted": "english"}, {"among": ["en", "xx"]}])
def test_an_unknown_language_is_refused_before_the_run(options):
    with pytest.raises(ConfigError, match="no language that can be told"):
        load_rewards("language", options={"language": options})
