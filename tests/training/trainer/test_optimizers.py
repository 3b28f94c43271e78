import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from modeling.toys import toy
from refusals import refused
from torch import nn
from transformers import get_scheduler

from vanillaformer.training.trainer import optimizers
from vanillaformer.training.trainer.optimizers import MuonWithAdamW, OptimizerArguments

ARGUMENTS = SimpleNamespace(
    learning_rate=1e-2, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-9, muon_momentum=0.9,
    muon_lr_factor=2.0,
)  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(5, 4)
        self.inner = nn.Linear(4, 8)
        self.outer = nn.Linear(8, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(self.outer(self.inner(self.embed_tokens(ids)).tanh())))


def train(net: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int = 5) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        ids = torch.randint(5, (16,))
        nn.functional.cross_entropy(net(ids), ids.roll(1)).backward()
        for optimizer in optimizers:
            optimizer.step()


def built(name: str, net: nn.Module, arguments: Any = ARGUMENTS) -> torch.optim.Optimizer:
    decaying = optimizers.decaying_names(net, [name for name, _ in net.named_parameters()])
    return optimizers.build_optimizer(name, net, set(decaying), arguments)


def equal(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_muon_is_torchs_muon_on_inner_matrices_and_adamw_on_the_rest(net, monkeypatch) -> None:
    monkeypatch.setattr("vanillaformer.training.hardware.has_bfloat16", lambda: True)
    reference = copy.deepcopy(net)
    muon = torch.optim.Muon(
        [reference.inner.weight, reference.outer.weight], lr=2e-2, weight_decay=0.1, momentum=0.9,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    rest = [reference.embed_tokens.weight, reference.inner.bias, *reference.norm.parameters(), reference.lm_head.bias]
    groups = [{"params": [reference.lm_head.weight], "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.98), eps=1e-9)
    train(net, [built("muon", net)])
    train(reference, [muon, adamw])
    assert equal(net, reference)


@pytest.mark.parametrize("shape", [(16, 24), (40, 16)])
def test_without_bfloat16_instructions_muon_orthogonalizes_in_float32(shape, monkeypatch) -> None:
    """The polynomial of the iteration, applied to the singular values, five times."""
    monkeypatch.setattr("vanillaformer.training.hardware.has_bfloat16", lambda: False)
    weight, gradient = nn.Parameter(torch.zeros(shape)), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight.grad = gradient.clone()
    MuonWithAdamW([{"params": [weight], "weight_decay": 0.0}], [], lr=1.0, momentum=0.0).step()
    left, values, right = torch.linalg.svd(gradient.double() / gradient.double().norm(), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = -0.2 * max(shape) ** 0.5 * (left * values) @ right
    assert (weight - expected).norm() / expected.norm() < 1e-4  # in bfloat16 it is 1e-2
    assert torch.equal(weight.grad, gradient)


def test_radam_is_torchs_with_decoupled_decay_of_matrices(net) -> None:
    reference = copy.deepcopy(net)
    matrices = [reference.inner.weight, reference.outer.weight, reference.lm_head.weight]
    others = [p for p in reference.parameters() if not any(p is matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    options: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-9, "decoupled_weight_decay": True}
    train(net, [built("radam", net)], steps=8)
    train(reference, [torch.optim.RAdam(groups, **options)], steps=8)
    assert equal(net, reference)


def test_scheduler_moves_both_parts_of_muon_and_unknown_optimizers_are_refused(net) -> None:
    optimizer = built("muon", net)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=4)
    rates = [group["lr"] for group in optimizer.param_groups]
    train(net, [optimizer], steps=1)
    scheduler.step()
    assert isinstance(optimizer, MuonWithAdamW)
    now = [group["lr"] for part in optimizer.parts for group in part.param_groups]
    assert now == pytest.approx([0.75 * rate for rate in rates])
    assert max(now) == pytest.approx(2 * min(now))
    schedule = get_scheduler("cosine_with_min_lr", built("muon", net), 0, 10, {"min_lr": 1e-3})
    assert schedule.lr_lambdas[0](10) == pytest.approx(0.1)
    unknown = OptimizerArguments(optim="muonn")
    refused(r"--optim muonn: .* did you mean 'muon'\? .* muon, radam, adamw_torch", unknown.check)
    OptimizerArguments(optim="adafactor").check()


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "encoder"])
def test_only_matrices_outside_tables_decay(kind) -> None:
    model = toy(kind)
    names = dict(model.named_parameters())
    decaying = set(optimizers.decaying_names(model, names))
    assert decaying
    for name, parameter in names.items():
        spared = "bias" in name or "norm" in name or "embed" in name or parameter.ndim < 2
        assert (name not in decaying) == spared, name


@pytest.mark.parametrize(("name", "factor"), [("adamw", 1 / 4), ("radam", 1 / 4), ("muon", 1 / 2)])
def test_rates_of_a_mup_model_follow_the_width_and_rate_times_decay_stays(name, factor):
    model = toy("decoder", hidden_size=256, parametrization="mup", base_width=64, tie_word_embeddings=False)
    ours = name != "adamw"
    optimizer = built(name, model) if ours else torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    before = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    optimizers.scale_rates(optimizer, model)
    rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(before) == len(rates)
    scaled = {part for part, each in model.named_parameters() if rates[id(each)] != before[id(each)]}
    linear = {f"{part}.weight" for part, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert scaled == linear - {"lm_head.weight"}
    for group in optimizer.param_groups:
        part = next(part for part, each in model.named_parameters() if each is group["params"][0])
        if part in scaled:
            assert group["lr"] == pytest.approx(before[id(group["params"][0])] * factor)
            assert group["lr"] * group["weight_decay"] == pytest.approx(before[id(group["params"][0])] * 0.1)
    schedule = get_scheduler("linear", optimizer, 0, 10)
    one, state = rates, optimizer.state_dict()
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    schedule.step()
    rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    assert all(rates[key] == pytest.approx(0.9 * rate) for key, rate in one.items())
    optimizer.load_state_dict(state)  # of as many groups


@pytest.mark.parametrize(
    ("patches", "slower"),
    [("convolution", []), ("linear", []), ("early_convolutions", ["projection.weight", "convolutions.1.weight"])],
)
def test_maps_of_pixels_keep_the_rate_of_a_mup_model_and_are_the_first_group(patches, slower):
    model = toy("image_encoder", parametrization="mup", base_width=8, patch_embedding=patches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizers.scale_rates(optimizer, model)
    first = {id(each) for each in optimizer.param_groups[0]["params"]}
    parts = model.model.embeddings.patch_embeddings.named_parameters()
    assert [name for name, each in parts if id(each) not in first] == slower
    assert optimizer.param_groups[0]["lr"] == 1e-2  # which is logged


@pytest.mark.parametrize("name", ["SGD", "SGDScheduleFree", "LayerWiseDummyOptimizer", "AdaLomo"])
def test_an_optimizer_that_does_not_divide_by_sizes_of_gradients_has_no_rates_of_mup(name):
    """Nor has one whose groups set no rates; of the packages that have them, only the names are known here."""
    model = toy("decoder", parametrization="mup")
    optimizer = type(name, (torch.optim.AdamW,), {})(model.parameters())
    refused(rf"--optim \({name}\): the rates of parametrization='mup'", optimizers.scale_rates, optimizer, model)
