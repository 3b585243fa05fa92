"""What is recorded of a training: measures against their definitions, and a file that comes back as it was or says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import assert_same
from torch import Tensor

from vit.interpret import Dynamics, DynamicsError, Matrix, read_dynamics
from vit.interpret.dynamics import FORMAT, QUANTITIES, product_drift, stable_rank, write_dynamics


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- measures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 24, 24), (4, 8, 96), (4, 96, 8), (3, 1, 7), (2, 192, 192)])
def test_stable_rank_is_that_of_the_singular_values(shape):
    matrices = noise(*shape)
    values = torch.linalg.svdvals(matrices.double())
    expected = values.square().sum(-1) / values[:, 0].square()
    torch.testing.assert_close(stable_rank(matrices).double(), expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(stable_rank(matrices * 1e-6).double(), expected, rtol=1e-4, atol=0)
    assert stable_rank(torch.zeros(1, 3, 3)).isnan().all()


@pytest.mark.parametrize("gap", [1e-5, 5e-4, 2e-3])
def test_stable_rank_of_eigenvalues_that_are_nearly_alike(gap):
    """The worst there is: all but one lie so far below the largest that the power tells them apart only in part."""
    values = torch.tensor([1.0] + [1 - gap] * 299, dtype=torch.double)
    found = stable_rank(torch.diag(values.sqrt()).float()[None]).item()
    assert found == pytest.approx(values.sum().item(), rel=2e-3)


def formed(query: Tensor, key: Tensor, first_query: Tensor, first_key: Tensor) -> Tensor:
    """The drift of W_Q W_K^T by forming it, in float64."""
    now, first = query.double().mT @ key.double(), first_query.double().mT @ first_key.double()
    return (now - first).norm(dim=(-2, -1)) / first.norm(dim=(-2, -1))


@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0, 10.0])
def test_product_drift_is_that_of_the_product_however_small(size):
    first = noise(3, 2, 4, 8), noise(3, 2, 4, 8, seed=1)  # (layers, h, d, D)
    now = first[0] + size * noise(3, 2, 4, 8, seed=2), first[1] + size * noise(3, 2, 4, 8, seed=3)
    found = product_drift(*now, *first)
    assert found.shape == (3, 2)
    torch.testing.assert_close(found.double(), formed(*now, *first), rtol=1e-4, atol=0)


def test_what_leaves_the_product_alone_is_no_drift():
    query, key = noise(4, 8), noise(4, 8, seed=1)
    mixing = noise(4, 4, seed=2) + 3 * torch.eye(4)
    other = mixing.mT @ query, torch.linalg.inv(mixing) @ key  # W_Q A and W_K A^-T, transposed
    assert (other[0] - query).norm() > query.norm()
    assert product_drift(*other, query, key) < 1e-3  # the root of what float32 leaves of two large parts that cancel
    assert product_drift(query, key, query, key) == 0


# --- the file --------------------------------------------------------------------------------------------------------

# as they are recorded: by shape, not by name
NAMES = [["encoder", name, layer] for layer in (0, 1) for name in ("W_Q", "W_K")]
NAMES += [["decoder", "W_Q", 0], ["encoder", "W_E", None]]
MATRICES = tuple(Matrix(*name) for name in NAMES)


def dynamics() -> Dynamics:
    recorded = {name: noise(3, len(MATRICES), seed=seed) for seed, name in enumerate(QUANTITIES)}
    recorded |= {"encoder.products": noise(3, 2, 4), "decoder.products": noise(3, 1, 2)}
    recorded |= {"encoder.bias_gradients": noise(3, 2, 3), "encoder.bias_norms": noise(3, 2, 3, seed=1)}
    return Dynamics(torch.tensor([1, 2, 4]), MATRICES, recorded)


def test_file_comes_back_as_it_was(tmp_path):
    before, path = dynamics(), tmp_path / "dynamics.safetensors"
    write_dynamics(path, before)
    after = read_dynamics(path)
    assert after.matrices == before.matrices
    assert_same(after.steps, before.steps)
    assert_same(sorted(after.recorded.items()), sorted(before.recorded.items()))
    write_dynamics(tmp_path / "again", after)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"dynamics.safetensors", "again"}


def test_matrices_are_found_by_name_in_the_order_of_layers():
    found = dynamics()
    drift = found.recorded["drift"]
    assert torch.equal(found.of("drift", "W_Q"), drift[:, [0, 2]])
    assert torch.equal(found.of("drift", "W_Q", "decoder"), drift[:, [4]])
    assert torch.equal(found.of("cosine", "W_E"), found.recorded["cosine"][:, [5]])
    assert found.names() == {"W_Q", "W_K", "W_E"}
    assert found.names("decoder") == {"W_Q"}
    backwards = Dynamics(found.steps, tuple(reversed(MATRICES)), {k: v.flip(-1) for k, v in found.recorded.items()})
    assert torch.equal(backwards.of("drift", "W_Q"), found.of("drift", "W_Q"))
    with pytest.raises(DynamicsError, match="stable_rank"):
        found.of("speed", "W_Q")
    with pytest.raises(DynamicsError, match="'W_E' was recorded in the decoder"):
        found.of("drift", "W_E", "decoder")


def test_matrix_without_any_gradient_is_frozen():
    found = dynamics()
    found.recorded["gradient_norm"][:, 2] = 0
    found.recorded["gradient_norm"][:2, 3] = 0  # in one record it has one
    assert found.frozen("W_Q").tolist() == [False, True]
    assert found.frozen("W_K").tolist() == [False, False]


def rewritten(path: Path, *, format: str = FORMAT, matrices: object = NAMES, **changes: Tensor) -> None:
    """The file with other names or tensors."""
    found = dynamics()
    about = json.dumps({"format": format, "matrices": matrices})
    save_file({"steps": found.steps, **found.recorded, **changes}, path, {"dynamics": about})


DAMAGE = {
    "missing": Path.unlink,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "a model": lambda path: save_file({"weight": noise(2, 2)}, path, {"format": "pt"}),
    "of another version": lambda path: rewritten(path, format="vit-patch-trainer/dynamics/2"),
    "too few names": lambda path: rewritten(path, matrices=NAMES[:1]),
    "a row less": lambda path: rewritten(path, drift=noise(2, 6)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_file_that_holds_no_dynamics_is_refused_in_one_line(damage, tmp_path):
    path = tmp_path / "dynamics.safetensors"
    rewritten(path)
    assert read_dynamics(path).steps.tolist() == [1, 2, 4]
    damage(path)
    with pytest.raises(DynamicsError) as caught:
        read_dynamics(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2
