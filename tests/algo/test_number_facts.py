"""Facts about numbers that choices in this project rest on."""

import pytest
import torch


def test_bfloat16_loses_the_steps_that_fine_tuning_takes():
    # Which is why weights are float32: a step of 1e-6 vanishes in almost every bfloat16 weight.
    assert torch.tensor(1.0).bfloat16() + 0.001953 / 2 == 1.0
    assert torch.tensor(0.02).bfloat16().item() == 0.02001953125
    assert torch.tensor(0.02).bfloat16() + 0.000061 == torch.tensor(0.02).bfloat16()
    assert torch.tensor(0.02).bfloat16() + 0.00012207 != torch.tensor(0.02).bfloat16()
    assert torch.tensor(-10.04).bfloat16().item() == -10.0625


def test_one_bfloat16_rounding_of_a_logprob_is_a_ratio_of_three_percent():
    # Which is why logprobs are float32: spacing is 0.0625 between 8 and 16.
    assert torch.tensor(0.0625 / 2).exp().item() == pytest.approx(1.031743, abs=1e-6)
    assert torch.tensor(0.0625).exp().item() == pytest.approx(1.064494, abs=1e-6)
    logits = torch.tensor([20.1, 20.0, 0.0])
    right = logits.log_softmax(0)
    assert right.tolist() == pytest.approx([-0.644397, -0.744397, -20.744397], abs=1e-5)
    rounded = logits.bfloat16().log_softmax(0).float()  # B26
    assert (rounded - right).exp()[0].item() == pytest.approx(1.011652, abs=1e-4)


def test_adam_goes_on_moving_without_a_gradient():
    # Which is why a step without any signal is skipped.
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1.0, eps=0.0)
    moves = []
    for gradient in (1.0, 0.0, 0.0):
        before = weight.item()
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        moves.append(before - weight.item())
    assert moves == pytest.approx([1.0, 0.670058, 0.517957], abs=1e-6)


@pytest.mark.parametrize(
    ("temperature", "logprobs", "entropy"),
    [
        (0.5, [-0.142932, -2.142932, -4.142932], 0.441057),
        (0.7, [-0.260118, -1.688690, -3.117261], 0.650573),
        (1.0, [-0.407606, -1.407606, -2.407606], 0.832396),
        (2.0, [-0.680270, -1.180270, -1.680270], 1.020191),
    ],
)
def test_temperature_divides_the_logits(temperature, logprobs, entropy):
    actual = (torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64) / temperature).log_softmax(0)
    assert actual.tolist() == pytest.approx(logprobs, abs=1e-6)
    assert -(actual.exp() * actual).sum().item() == pytest.approx(entropy, abs=1e-6)
