"""Law: the page that computes the model in the browser has torch's numbers, forward, backward and after a step."""

import copy

import pytest
import torch
from forks import ROOT
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from studies.lesson import MODEL, RATE, SCENES, lesson_page
from vit.checkpoints import load_model
from vit.inputs import to_float
from vit.mae import MaskedAutoencoder
from vit.masking import Mask, mask_from_noise
from vit.patches import patchify, unpatchify
from vit.scenes import draw_scenes

CLOSE = 1e-4
GRID = (8, 8)
QUOTING = ("notebooks/04_who_trains_w_q_w_k_w_v.ipynb", "studies/results/who-trains-them.md")


@pytest.fixture(scope="module")
def model() -> MaskedAutoencoder:
    return load_model(MODEL)


@pytest.fixture(scope="module")
def path(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("lesson") / "lesson.html"
    path.write_text(lesson_page(model), encoding="utf-8")
    return path


def open_page(driver, address: str) -> None:
    driver.get("about:blank")
    driver.get(address)
    WebDriverWait(driver, 60).until(lambda page: page.find_element(By.ID, "lesson").is_displayed())


@pytest.fixture(scope="module")
def opened(driver, path):
    open_page(driver, path.as_uri())
    return driver


@pytest.fixture
def page(opened):
    """The page as it opens."""
    opened.find_element(By.ID, "reset").click()
    yield opened
    assert [
        line["message"] for line in opened.get_log("browser") if line["level"] == "SEVERE"
    ] == []


def choose(driver, **state: object) -> dict:
    """Set the page's state, and return its numbers."""
    return driver.execute_script(
        "Object.assign(lesson.state, arguments[0]); lesson.changed(); return lesson.results();",
        state,
    )


def inputs_of(model: MaskedAutoencoder, picture: int, order: list[int]) -> torch.Tensor:
    """The picture whose i-th patch is that at order[i], normalised (1, 3, 32, 32)."""
    pixels = to_float(draw_scenes(torch.tensor(SCENES[picture : picture + 1]), seed=0)[0], (32, 32))
    patches = patchify(pixels, (4, 4))[:, order]
    return model.origin.normalize(unpatchify(patches, (4, 4), GRID))


def mask_of(hidden: list[bool]) -> Mask:
    """The mask, visible and masked patches each in grid order."""
    return mask_from_noise(torch.tensor([hidden]).float(), keep=hidden.count(False))


def by_torch(model: MaskedAutoencoder, state: dict, patch: int) -> dict[str, torch.Tensor]:
    """The numbers of one layer, from autograd: of all heads and tokens, and the error of a patch."""
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    attention = blocks[state["layer"]].attn
    kept = {}

    def by_hand(module, inputs, output):
        q, k, v = module.project(inputs[0])
        scores = q @ k.mT * q.shape[-1] ** -0.5
        mixed = scores.softmax(-1) @ v
        scores.retain_grad()
        mixed.retain_grad()
        added = module.proj(mixed.transpose(1, 2).flatten(2))
        kept.update(x=inputs[0], q=q, k=k, v=v, scores=scores, mixed=mixed, added=added)
        return added

    hook = attention.register_forward_hook(by_hand)
    inputs = inputs_of(model, state["picture"], state["order"])
    predicted = model(inputs, mask_of(state["hidden"]))[0, patch]
    error = (predicted - model.targets(inputs)[0, patch]).square().mean()
    model.zero_grad()
    error.backward()
    hook.remove()
    return {**kept, "error": error}


def compare(page: dict, torchs: dict[str, torch.Tensor], head: int) -> None:
    token = page["token"]
    scores = torchs["scores"]
    expected = {
        "x": torchs["x"][0, token],
        "q": torchs["q"][0, head, token],
        "k": torchs["k"][0, head, page["key"]],
        "v": torchs["v"][0, head, page["key"]],
        "o": torchs["mixed"][0, head, token],
        "added": torchs["added"][0, token],
        "scores": scores[0, head, token],
        "shares": scores.softmax(-1)[0, head, token],
        "g": torchs["mixed"].grad[0, head, token],
        "helps": torchs["v"][0, head] @ torchs["mixed"].grad[0, head, token],
        "gscores": scores.grad[0, head, token],
        "error": torchs["error"],
    }
    for name, values in expected.items():
        assert page[name] == pytest.approx(values.detach().tolist(), rel=CLOSE, abs=CLOSE), name


# the last is another picture, two of whose patches are swapped, and fewer are hidden
STATES = {
    "the decoder": {},
    "the first block of the encoder": {"layer": 0, "head": 0, "query": 24},
    "another picture": {
        "picture": 1,
        "order": [*range(10), 50, *range(11, 50), 10, *range(51, 64)],
        "hidden": [patch % 3 == 0 for patch in range(64)],
        "query": 33,
        "guessed": 33,
        "layer": 6,
        "head": 3,
    },
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_numbers_are_torchs_forward_and_backward(page, model, state):
    numbers = choose(page, **state)
    now = page.execute_script("return lesson.state")
    compare(numbers, by_torch(model, now, now["guessed"]), now["head"])
    assert sum(numbers["shares"]) == pytest.approx(1)


def test_without_matrices_a_token_is_its_own_query_key_and_value(page, model):
    numbers = choose(page, kind="identity")
    state = page.execute_script("return lesson.state")
    plain = copy.deepcopy(model)
    qkv = plain.decoder.blocks[0].attn.qkv
    width = qkv.in_features
    qkv.weight.data = torch.eye(width).repeat(3, 1)
    qkv.bias.data.zero_()
    compare(numbers, by_torch(plain, state, state["guessed"]), state["head"])


def test_a_step_is_torchs_step_of_w_q_and_w_k(page, model):
    layer = 4
    before = choose(page, layer=layer, query=24, key=0)
    after = page.execute_script("lesson.step(); return lesson.results();")
    state = page.execute_script("return lesson.state")

    learner = copy.deepcopy(model)
    by_torch(learner, state, state["guessed"])
    blocks = [*learner.encoder.blocks, *learner.decoder.blocks]
    weight = blocks[layer].attn.qkv.weight
    both = slice(0, 2 * weight.shape[1])
    with torch.no_grad():
        weight[both] -= RATE * weight.grad[both]
    compare(after, by_torch(learner, state, state["guessed"]), state["head"])
    assert after["error"] < before["error"]


@pytest.mark.parametrize("state", [*STATES.values()][:2], ids=str)
def test_ten_steps_do_not_swing(page, state):
    numbers = [choose(page, **state)]
    for _ in range(10):
        numbers.append(page.execute_script("lesson.step(); return lesson.results();"))
    errors = [one["error"] for one in numbers]
    assert errors == sorted(errors, reverse=True)
    # the weight of the key turns round once at most: where it has enough, it falls
    key = numbers[0]["key"]
    moves = torch.tensor([one["shares"][key] for one in numbers]).diff()
    assert (moves[1:].sign() != moves[:-1].sign()).sum() <= 1


def test_the_notebook_and_the_page_s_results_have_this_step(page):
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in QUOTING]
    before = choose(page)
    after = page.execute_script("lesson.step(); return lesson.results();")
    for numbers in (before, after):
        for value in (numbers["shares"][numbers["key"]], numbers["error"]):
            assert all(f"{value:.3f}" in text for text in texts), value


def test_a_state_is_a_link(page, path):
    choose(page, layer=3, head=2, query=24, kind="untrained")
    before = page.execute_script("return lesson.results()")
    link = page.current_url
    open_page(page, link)
    assert page.execute_script("return lesson.results()") == before
