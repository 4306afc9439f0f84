"""Completions for rewards to grade."""

from muster.records import Completion, GradingRequest, Sample


def ask(*texts: str, raw: bool = False, **columns: object) -> list[GradingRequest]:
    """A request per text, each of a sample of its own with these columns."""
    return [
        GradingRequest(
            sample=Sample(
                id=str(number),
                messages=() if raw else ({"role": "user", "content": "question"},),
                text="question" if raw else None,
                columns=columns,
            ),
            prompt_text="<s>question",
            completion=Completion(ids=(5, 6), sampler_logprobs=(-1.0, -2.0), finish_reason="stop", version=0),
            text=text,
            plain_text=text,
        )
        for number, text in enumerate(texts)
    ]
