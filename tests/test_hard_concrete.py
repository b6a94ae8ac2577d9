"""Hard concrete gates: their distribution, their gradients, the gates of a model."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import dictionary, parse_model, randomise, stub_task
from fairseq.models import build_model
from torch.testing import assert_close

from lite_transformer_plugin.heads import hard_concrete, list_heads, parse_heads
from lite_transformer_plugin.heads.hard_concrete import HIGH, LOW, TEMPERATURE
from lite_transformer_plugin.heads.learned_gates import LearnedGates
from lite_transformer_plugin.heads.removal import remove_heads_

SMALL = ["--arch", "transformer", "--encoder-layers", "1", "--decoder-layers", "2"]
SMALL += ["--encoder-embed-dim", "8", "--decoder-embed-dim", "8"]
SMALL += ["--encoder-attention-heads", "2", "--decoder-attention-heads", "4"]
THRESHOLD = math.log(-LOW / HIGH)  # below it a gate is closed at test: sigmoid(log_a) = 1 / 12


def model_of(seed: int = 0) -> torch.nn.Module:
    return randomise(build_model(parse_model(*SMALL), stub_task(dictionary())), seed)


# --- the distribution -----------------------------------------------------------------------------


@pytest.mark.parametrize("log_a", [-3.0, -0.5, 0.0, 1.0, 2.5])
def test_a_sample_is_open_as_often_as_the_formula_says(log_a):
    torch.manual_seed(1)
    number = 200_000
    gates = hard_concrete.draw(torch.full((number,), log_a, dtype=torch.double))
    assert gates.min() >= 0 and gates.max() <= 1
    for is_so, likely in (
        (gates > 0, hard_concrete.probability_open(torch.tensor(log_a))),
        # Louizos et al. 2018, equation 12, at the other end of the stretch
        (gates < 1, torch.sigmoid(torch.tensor(TEMPERATURE * math.log(-LOW / HIGH) * -1 - log_a))),
    ):
        deviation = math.sqrt(likely * (1 - likely) / number)
        assert abs(is_so.double().mean() - likely) < 4 * deviation


def test_noise_in_the_middle_gives_a_gate_in_the_middle():
    half = torch.full((3,), 0.5)
    gates = hard_concrete.draw(torch.tensor([-1.0, 0.0, 1.0]), half)
    expected = [1.2 / (1 + math.exp(x / 0.33)) - 0.1 for x in (1, 0, -1)]
    assert_close(gates, torch.tensor(expected).clamp(0, 1))


def test_all_of_the_noise_gives_gates_and_gradients():
    """torch.rand includes zero."""
    log_a = torch.zeros(2, requires_grad=True)
    gates = hard_concrete.draw(log_a, torch.tensor([0.0, 1 - 2**-24]))
    gates.sum().backward()
    assert gates.tolist() == [0, 1] and log_a.grad.tolist() == [0, 0]


def test_at_test_there_is_no_noise():
    log_a = torch.tensor([THRESHOLD - 1e-3, THRESHOLD + 1e-3, 0.0, -THRESHOLD + 1e-3])
    gates = hard_concrete.without_noise(log_a)
    assert gates[0] == 0 and 0 < gates[1] < 1e-3 and gates[2] == 0.5 and gates[3] == 1


def test_gradients_are_finite_differences():
    torch.manual_seed(2)
    log_a = torch.linspace(-2, 2, 7, dtype=torch.double, requires_grad=True)
    noise = torch.linspace(0.2, 0.8, 7, dtype=torch.double)
    assert torch.autograd.gradcheck(hard_concrete.probability_open, log_a)
    assert torch.autograd.gradcheck(lambda x: hard_concrete.draw(x, noise), log_a)


# --- the gates of a model -------------------------------------------------------------------------


def test_gates_start_open():
    gates = LearnedGates(model_of())
    assert gates.closed() == [] and gates.open().all()
    assert {place: len(gate) for place, gate in gates.draw().items()} == {
        ("E", 1): 2, ("A", 1): 4, ("A", 2): 4, ("D", 1): 4, ("D", 2): 4
    }  # fmt: skip


def test_the_penalty_is_the_mean_over_modules():
    gates = LearnedGates(model_of(), log_a=0.7, speed=3.0)
    likely = 1 / (1 + math.exp(-(0.7 - 0.33 * math.log(0.1 / 1.1))))
    assert gates.expected_open().item() == pytest.approx((2 + 4 + 4 + 4 + 4) / 5 * likely)


def test_half_precision_is_left_behind():
    gates = LearnedGates(model_of()).half()
    assert {log_a.dtype for log_a in gates.log_a().values()} == {torch.float}
    assert LearnedGates(model_of()).double().expected_open().dtype == torch.double


def close(gates: LearnedGates, names: str) -> None:
    for head in parse_heads(names):
        gates.scaled[f"{head.part}:{head.layer}"].data[head.head - 1] = THRESHOLD - 0.1


def test_closed_heads_have_names():
    gates = LearnedGates(model_of(), speed=1.0)
    close(gates, "D:2:3 E:1:2 A:1:1")
    assert gates.closed() == parse_heads("E:1:2 A:1:1 D:2:3")


def test_the_model_is_no_part_of_the_gates():
    gates = LearnedGates(model_of())
    assert sum(p.numel() for p in gates.parameters()) == len(list_heads(model_of()))


def test_state_comes_back_exactly_with_the_columns_of_closed_heads():
    model = model_of()
    gates = LearnedGates(model, speed=1.0)
    close(gates, "A:1:2 D:1:4")
    saved, weights = gates.state_dict(), model.state_dict()
    resumed = model_of(seed=3)
    resumed.load_state_dict(weights)
    again = LearnedGates(resumed, speed=1.0)
    again.load_state_dict(saved)
    for name, value in model.named_parameters():  # also what was zero in the checkpoint
        assert torch.equal(value, resumed.get_parameter(name))
    assert again.closed() == gates.closed() == parse_heads("A:1:2 D:1:4")
    assert all(
        torch.equal(a, b) for a, b in zip(gates.parameters(), again.parameters(), strict=True)
    )


def test_another_speed_has_the_same_gates():
    gates = LearnedGates(model_of(), log_a=1.5, speed=1.0)
    other = LearnedGates(model_of(), speed=4.0)
    other.load_state_dict(gates.state_dict())
    assert_close(other.log_a(), gates.log_a())
    assert other.scaled["E:1"].tolist() == [1.5 / 4] * 2


def test_gates_follow_the_heads_that_are_left():
    gates = LearnedGates(model_of(), speed=1.0)
    gates.scaled["A:2"].data.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    smaller = model_of()
    remove_heads_(smaller, parse_heads("A:2:1,3 D:1:1-4"))
    left = LearnedGates(smaller)
    left.load_state_dict(gates.state_dict())
    assert_close(left.log_a()["A", 2], torch.tensor([2.0, 4.0]))
    assert ("D", 1) not in left.log_a()


def test_gates_of_another_model_are_refused(caplog):
    smaller = model_of()
    remove_heads_(smaller, parse_heads("A:2:3"))
    message = "gates of another model: there is none for A:2:3"
    with pytest.raises(ValueError, match=message):
        LearnedGates(model_of()).load_state_dict(LearnedGates(smaller).state_dict())
    assert message in caplog.text  # fairseq hides the error behind its own


def test_a_model_without_heads():
    with pytest.raises(ValueError, match="SimpleNamespace has no attention heads"):
        LearnedGates(SimpleNamespace())
