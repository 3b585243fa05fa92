"""Law: the page on which a model learns a world has torch's numbers, and trains when asked."""

import pytest
import torch
from forks import ROOT
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from studies import world

PAGE = ROOT / "docs" / "world.html"
CLOSE = 1e-4
STEPS = 5


@pytest.fixture
def page(driver):
    driver.get("about:blank")
    driver.get_log("browser")  # of pages before this one
    driver.get(PAGE.as_uri())
    WebDriverWait(driver, 30).until(lambda page: points(page))
    yield driver
    assert driver.get_log("browser") == []


def points(page) -> list[dict]:
    """What the curves of the run show."""
    return page.execute_script("return world.state.run.points")


def lists(tensors: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    return {name: tensor.detach().flatten().tolist() for name, tensor in tensors.items()}


def without_key_bias(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Softmax does not see the key's bias: its gradient is a rounding error, of which AdamW makes a step."""
    kept = {}
    for name, tensor in tensors.items():
        kept[name] = tensor.detach().clone()
        if name.endswith("qkv.bias"):
            kept[name][world.WIDTH : 2 * world.WIDTH] = 0
    return kept


def test_losses_gradients_steps_and_measurements_are_torchs(page):
    training = world.Training(seed=3)
    model = training.model
    with torch.no_grad():  # no gradient is small because the start is
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape)
    start = lists(dict(model.named_parameters()))
    setting = world.World(company=0.5, substitutes=True)
    batches = [world.draw_batch(setting, 16, training.dice) for _ in range(STEPS)]
    found = page.execute_script(
        """
        const [start, batches] = arguments, model = new world.Model(0), plain = (x) => Array.from(x);
        const all = (what) => Object.fromEntries(Object.entries(model.tensors).map(([name, one]) => [name, plain(one[what])]));
        for (const name in start) model.tensors[name].values.set(start[name]);
        const measured = world.measure(model), result = { measured, losses: [], kinds: world.pixelsOf.map(plain) };
        for (const [pixels, masked] of batches) {
          result.losses.push(model.step(Float64Array.from(pixels), Uint8Array.from(masked)));
          result.gradients ??= all("gradient");
        }
        return { ...result, weights: all("values") };
        """,
        start,
        [
            (pixels.flatten().tolist(), masked.flatten().int().tolist())
            for pixels, masked in batches
        ],
    )

    assert torch.tensor(found["kinds"]) == pytest.approx(world.kind_pixels(), abs=CLOSE)
    measured = world.measure(model)
    for view in ("embedding", "alone"):
        for kind in world.COMPARED:
            assert found["measured"][view][kind] == pytest.approx(
                measured[f"{view}: {kind}"], abs=CLOSE
            )
    for kind in ("road", "grass"):
        assert found["measured"]["beside"][kind] == pytest.approx(
            measured[f"reconstructed: {kind}"], abs=CLOSE
        )
    for layer, name in enumerate(("first", "second")):
        assert found["measured"]["scores"][name] == pytest.approx(
            measured[f"score, layer {layer}"], abs=CLOSE
        )

    losses = []
    gradients = {}
    for pixels, masked in batches:
        loss = world.loss(model, pixels, masked)
        training.optimizer.zero_grad()
        loss.backward()
        gradients = gradients or without_key_bias(
            {name: p.grad for name, p in model.named_parameters()}
        )
        training.optimizer.step()
        training.warmup.step()
        losses.append(loss.item())
    assert found["losses"] == pytest.approx(losses, rel=CLOSE)
    assert found["gradients"].keys() == gradients.keys()
    for expected, name in (
        (gradients, "gradients"),
        (without_key_bias(dict(model.named_parameters())), "weights"),
    ):
        got = {
            part: torch.tensor(values).view_as(expected[part])
            for part, values in found[name].items()
        }
        for part, values in without_key_bias(got).items():
            assert (values - expected[part]).norm() <= CLOSE * expected[part].norm(), (name, part)


def test_it_trains_and_goes_on_when_the_world_changes(page):
    page.find_element(By.ID, "train").click()
    WebDriverWait(page, 120, poll_frequency=0.05).until(lambda page: len(points(page)) > 5)
    page.execute_script("company.value = 0; company.dispatchEvent(new Event('change'))")
    WebDriverWait(page, 120).until(lambda page: len(points(page)) > 7)
    page.find_element(By.ID, "train").click()
    run = page.execute_script("return world.state.run")
    steps = [point["step"] for point in run["points"]]
    assert steps == list(range(0, 20 * len(steps), 20))
    [mark] = run["marks"]
    assert mark["says"] == "grass"
    before = run["points"][5]
    assert before["embedding"]["ball"] > before["embedding"]["grass"] + 0.5
