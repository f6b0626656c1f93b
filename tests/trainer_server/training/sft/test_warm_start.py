"""Warm starts on packed rows: what is learnt, what is not, and that it is what TRL's SFTTrainer learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.clock import Clock
from tests.support.training.models import ARCHITECTURES, pair, stock_weights
from tests.support.training.worker import groups, make_worker, step
from trainer_server.jobs.demonstrations import Demonstrations, Row
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.model.tree import pack
from trainer_server.training.ranks import ALONE
from trainer_server.training.sft import order as warm_start_clock
from trainer_server.training.sft import warm_start as warm_start_module
from trainer_server.training.sft.batches import Paths
from trainer_server.training.sft.warm_start import _backward, warm_start
from trainer_server.training.worker import Worker
from trainer_server.wire import Conversation, PolicySpec, SFTConfig, SFTRequest, TrainingError

ROWS = [
    Row(ids=[1, 2, 3, 9, 8, 7], loss_spans=[(3, 6)]),
    Row(ids=[4, 5, 6, 11, 12, 1, 13, 14], loss_spans=[(3, 5), (6, 8)]),
]
CONFIG = SFTConfig(lr=2e-2, num_train_epochs=12, per_device_train_batch_size=2)


def given(rows: list[Row] = ROWS) -> Demonstrations:
    return Demonstrations(rows=rows, turns=sum(len(row.loss_spans) for row in rows))


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return make_worker(tmp_path)


def sft(worker: Worker, rows: list[Row] = ROWS, config: SFTConfig = CONFIG) -> Any:
    """A warm start through the queue; returns what the trainer reported."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    request = SFTRequest(conversations=[Conversation(messages=messages)], config=config)
    job = worker.queue.accept("sft", "p", request=request)
    worker.queue.write_rows(job.id, given(rows))
    worker.do(job)
    return worker.queue.training_outcome(job.id)


def logps(worker: Worker, row: Row) -> torch.Tensor:
    """Log-probability of every token of a row but the first."""
    (packed,) = pack([np.array(row.ids[:1])], [np.array(row.ids[1:])], budget=100).rows
    with torch.no_grad():
        return worker.model.logprobs(packed, torch.ones(len(row.ids) - 1))[0]


def adapter(worker: Worker, version: int) -> dict[str, torch.Tensor]:
    return load_file(worker.store.directory("p", version) / "adapter_model.safetensors")


def test_what_was_demonstrated_gets_likelier(worker: Worker) -> None:
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", 0))
    before = [logps(worker, row) for row in ROWS]
    trained = sft(worker)
    assert trained.error is None
    metrics = trained.result.metrics
    assert trained.result.version == 1
    assert metrics["loss_last"] < metrics["loss_first"] - 1.0
    assert (metrics["rows"], metrics["turns"], metrics["tokens_trained"], metrics["tokens_total"]) == (2, 3, 7, 14)
    assert metrics["updates"] == 12
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", 1))
    after = [logps(worker, row) for row in ROWS]
    for row, old, new in zip(ROWS, before, after, strict=True):
        for start, stop in row.loss_spans:
            assert new[start - 1 : stop - 1].sum() > old[start - 1 : stop - 1].sum() + 1.0


def test_the_loss_is_that_of_the_learnt_tokens_alone(worker: Worker) -> None:
    """Closed form: the first update's loss is the mean negative log-probability over all spans of all rows."""
    worker.model.load(PolicySpec(name="p"), worker.store.directory("p", 0))
    found = [logps(worker, row)[start - 1 : stop - 1] for row in ROWS for start, stop in row.loss_spans]
    metrics = sft(worker).result.metrics
    assert metrics["loss_first"] == pytest.approx(-float(torch.cat(found).mean()), abs=1e-6)


SHARING = [
    Row(ids=[1, 2, 3, 9, 8, 7], loss_spans=[(3, 6)]),
    Row(ids=[1, 2, 3, 9, 12, 1, 13, 14], loss_spans=[(3, 5), (6, 8)]),
    Row(ids=[1, 2, 3, 9, 12], loss_spans=[(4, 5)]),
    Row(ids=[1, 2, 4, 4], loss_spans=[(2, 4)]),
]
"""Demonstrations that begin alike; the first tokens of one answer are context of another."""


def loss_by_hand(stock: Any, rows: list[Row]) -> torch.Tensor:
    """One sequence at a time: transformers' forward pass, PEFT's LoRA, all logits."""
    total, tokens = torch.zeros(()), 0
    for row in rows:
        logp = stock(input_ids=torch.tensor([row.ids])).logits[0, :-1].log_softmax(1)
        for start, stop in row.loss_spans:
            total = total - logp[start - 1 : stop - 1].gather(1, torch.tensor(row.ids[start:stop])[:, None]).sum()
            tokens += stop - start
    return total / tokens


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize(("budget", "share"), [(1000, True), (8, True), (1000, False)])
def test_the_gradient_is_that_of_separate_sequences(
    tmp_path: Path, architecture: str, budget: int, share: bool
) -> None:
    """Plain transformers and PEFT, whatever is packed into one row, divided over rows, or in a row of its own."""
    both = pair(ARCHITECTURES[architecture], tmp_path)
    expected = loss_by_hand(both.stock, SHARING)
    expected.backward()  # type: ignore[no-untyped-call]
    rows = Paths.of(SHARING).pack(budget, share=share, ranks=1).rows
    assert (len(rows) > 1) == (budget == 8 or not share)
    tokens = sum(row.loss_tokens for row in SHARING)
    assert _backward(both.ours, rows, tokens, ALONE, detached=False) == pytest.approx(expected.item(), abs=1e-6)
    theirs = stock_weights(both.stock)
    for name, weight in both.ours.parameters():
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-4, atol=2e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_losses_and_weights_are_those_of_trl(tmp_path: Path) -> None:
    """Four updates of AdamW with warm-up, decay, clipping and accumulation, by SFTTrainer on padded rows."""
    import datasets
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig as Arguments
    from trl import SFTTrainer
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    config = SFTConfig(
        lr=2e-3, num_train_epochs=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, warmup_steps=1,
        weight_decay=0.1, adam_epsilon=1e-3, max_grad_norm=0.5,
    )  # fmt: skip
    both = pair(ARCHITECTURES["llama"], tmp_path / "model")
    metrics = warm_start(both.ours, Demonstrations(rows=SHARING, turns=5), config)
    own = {"lr", "train_on", "min_reward", "token_budget", "patience", "max_seconds", "detach_prefix"}
    own |= {"fit_to_time", "lr_updates"}
    arguments = Arguments(
        output_dir=str(tmp_path / "trl"), learning_rate=config.lr, **config.model_dump(exclude=own), use_cpu=True,
        bf16=False, gradient_checkpointing=False, dataset_kwargs={"skip_prepare_dataset": True}, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    examples = []
    for row in SHARING:
        labels = [-100] * len(row.ids)
        for start, stop in row.loss_spans:
            labels[start:stop] = row.ids[start:stop]
        examples.append({"input_ids": row.ids, "labels": labels})
    trainer = SFTTrainer(
        both.stock, arguments, data_collator=DataCollatorForLanguageModeling(pad_token_id=0),
        train_dataset=datasets.Dataset.from_list(examples),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"</s>": 0}, "</s>")),
                                                 pad_token="</s>", eos_token="</s>"),
    )  # fmt: skip
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == metrics["updates"] == 4
    assert metrics["loss_first"] == pytest.approx(losses[0], rel=1e-3)  # TRL rounds what it logs
    assert metrics["loss_last"] == pytest.approx(losses[-1], rel=1e-3)
    assert metrics["loss_last"] < metrics["loss_first"]
    theirs = stock_weights(both.stock)
    for name, weight in both.ours.parameters():
        torch.testing.assert_close(weight.detach(), theirs[name].detach(), rtol=1e-4, atol=1e-6)


def test_tokens_are_counted_after_sharing(worker: Worker) -> None:
    metrics = sft(worker, SHARING, SFTConfig(num_train_epochs=1)).result.metrics
    assert metrics["tokens_total"] == 23
    assert metrics["tokens_unique"] == 9  # 1 2 3 9 8, then 12 1 13, then 4; the last token of an answer is a target
    assert metrics["tokens_detached"] == 0
    assert metrics["tokens_per_second"] > 0


def test_what_all_demonstrations_begin_with_is_detached(worker: Worker) -> None:
    """1 2 begins all of them; what predicts the first token of an answer has a gradient."""
    metrics = sft(worker, SHARING, SFTConfig(num_train_epochs=1, detach_prefix=True)).result.metrics
    assert (metrics["tokens_unique"], metrics["tokens_detached"]) == (9, 1)


def test_no_context_is_in_the_backward_pass_and_the_beginning_is_kept_for_eight_updates(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine updates of two rows with three common tokens. Of each row's own three two predict an answer."""
    lengths: list[int] = []
    compute = PolicyModel.trunk

    def trunk(model: PolicyModel, row: Any, length: int) -> Any:
        lengths.append(length)
        return compute(model, row, length)

    monkeypatch.setattr(PolicyModel, "trunk", trunk)
    rows = [Row(ids=[1, 2, 0, 3 + n, n % 5, 5, 6], loss_spans=[(5, 7)]) for n in range(18)]
    config = SFTConfig(num_train_epochs=1, per_device_train_batch_size=2, detach_prefix="context")
    metrics = sft(worker, rows, config).result.metrics
    assert (metrics["updates"], lengths) == (9, [3, 3])
    assert metrics["tokens_unique"] == 9 * 3 + 18 * 3
    assert metrics["tokens_detached"] == 9 * 3 + 18 * 1
    assert metrics["loss_last"] < metrics["loss_first"]


@pytest.fixture
def second_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of warm starts, an update takes a second, and nothing else takes any time."""
    now = Clock()

    def backward(*parts: Any, **options: Any) -> float:
        now.sleep(1.0)
        return _backward(*parts, **options)

    monkeypatch.setattr(warm_start_module, "time", now)
    monkeypatch.setattr(warm_start_clock, "time", now)
    monkeypatch.setattr(warm_start_module, "_backward", backward)


@pytest.mark.usefixtures("second_an_update")
def test_rows_for_which_there_is_no_time_are_left_out_the_last_first(worker: Worker) -> None:
    """Each row is a conversation; the one before the second row has none, as if it had been skipped."""
    rows = [Row(ids=[1, 2, 3, n % 9], loss_spans=[(3, 4)], source=n + (n > 0)) for n in range(5_000)]
    config = SFTConfig(per_device_train_batch_size=1, num_train_epochs=1, fit_to_time=True, max_seconds=10)
    metrics = sft(worker, rows, config).result.metrics
    assert (metrics["stopped"], metrics["updates"]) == ("max_seconds", 10)
    assert metrics["imitated"] == [0, *range(2, 11)]


def test_the_time_for_rendering_counts_where_rows_must_fit(worker: Worker) -> None:
    config = SFTConfig(per_device_train_batch_size=1, fit_to_time=True, max_seconds=60)
    metrics = warm_start(worker.model, given(ROWS).model_copy(update={"seconds": 59.9999}), config)
    assert (metrics["updates"], metrics["stopped"]) == (1, "max_seconds")


def test_with_time_for_all_rows_held_out_losses_are_measured_from_the_second_pass_on(worker: Worker) -> None:
    config = SFTConfig(per_device_train_batch_size=1, num_train_epochs=3, fit_to_time=True, max_seconds=600)
    demonstrations = given(SHARING[:2]).model_copy(update={"validation": given(ROWS[1:])})
    metrics = warm_start(worker.model, demonstrations, config.model_copy(update={"patience": None}))
    assert metrics["validation_updates"] == [2, 4, 6]
    assert metrics["imitated"] == [0]


@pytest.mark.parametrize(("updates", "expected"), [(None, 1e-3), (8, 2e-3), (2, 1e-3), (1, math.sqrt(0.5) * 1e-3)])
def test_the_learning_rate_falls_with_the_root_of_the_updates(
    worker: Worker, updates: int | None, expected: float
) -> None:
    config = SFTConfig(lr=1e-3, lr_updates=updates, per_device_train_batch_size=1, num_train_epochs=1)
    assert warm_start(worker.model, given(SHARING[:2]), config)["lr"] == pytest.approx(expected)


def test_a_single_update_learns(worker: Worker) -> None:
    """A fraction of one update as warm-up is none: its learning rate is not 0."""
    assert sft(worker, config=SFTConfig(num_train_epochs=1)).result.metrics["updates"] == 1
    before, after = adapter(worker, 0), adapter(worker, 1)
    assert not all(torch.equal(before[name], after[name]) for name in before)


def test_context_has_no_gradient(tmp_path: Path) -> None:
    """Other context after the last learnt token changes not one bit."""
    first, second = make_worker(tmp_path / "a"), make_worker(tmp_path / "b")
    sft(first, [Row(ids=[1, 2, 3, 4, 5], loss_spans=[(2, 4)])])
    sft(second, [Row(ids=[1, 2, 3, 4, 9], loss_spans=[(2, 4)])])
    one, two = adapter(first, 1), adapter(second, 1)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(tmp_path: Path) -> None:
    rows = [Row(ids=[n, n + 1, n + 2], loss_spans=[(1, 3)]) for n in range(6)]
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        worker = make_worker(tmp_path / name)
        torch.manual_seed(len(found))  # what came before does not matter
        sft(worker, rows, CONFIG.model_copy(update={"seed": seed, "num_train_epochs": 2}))
        found.append(adapter(worker, 1))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert not all(torch.equal(found[0][name], found[2][name]) for name in found[0])


def test_the_adapter_is_that_of_a_step(worker: Worker) -> None:
    """Same names, shapes and configuration, so that vLLM reads it as any other version."""
    sft(worker)
    step(worker, groups(1.0, 0.0, 0.3))
    before, made, stepped = (adapter(worker, version) for version in (0, 1, 2))
    assert {n: t.shape for n, t in made.items()} == {n: t.shape for n, t in before.items()}
    assert {n: t.dtype for n, t in made.items()} == {n: t.dtype for n, t in stepped.items()}
    configs = [(worker.store.directory("p", v) / "adapter_config.json").read_text() for v in (0, 1, 2)]
    assert configs[0] == configs[1] == configs[2]


def test_a_step_after_a_warm_start_begins_with_a_fresh_optimizer(tmp_path: Path) -> None:
    """As if the warm version were version 0: its step does not depend on SFT's moments. Nor does SFT on a step's."""
    import json

    worker = make_worker(tmp_path)
    step(worker, groups(1.0, 0.0, 0.3))
    sft(worker)
    state = json.loads((worker.store.directory("p", 2) / "trainer.json").read_text())
    assert state == {"updates": 0}
    step(worker, groups(1.0, 0.0, 0.3))
    assert json.loads((worker.store.directory("p", 3) / "trainer.json").read_text()) == {"updates": 1}


def test_layers_are_computed_twice_by_the_size_of_a_row_whatever_was_trained_before(worker: Worker) -> None:
    calls: list[int] = []
    worker.model._base.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    once = CONFIG.model_copy(update={"num_train_epochs": 1})
    worker.model.checkpoint_above = 0
    step(worker, groups(1.0, 0.0, 0.3))
    for above, expected in ((10_000, 1), (0, 2)):
        calls.clear()
        worker.model.checkpoint_above = above
        sft(worker, config=once)
        assert len(calls) == expected


def test_a_warm_start_that_diverges_makes_no_version(worker: Worker) -> None:
    with torch.no_grad():
        next(iter(worker.model.parameters()))[1].fill_(math.inf)
    with pytest.raises(TrainingError, match="no version was made"):
        warm_start(worker.model, given(), CONFIG)


def test_no_rows_make_no_version(worker: Worker) -> None:
    trained = sft(worker, [])
    assert trained.result.version == 0
    assert "nothing to imitate" in trained.result.metrics["skipped"]


def test_a_job_taken_up_twice_makes_one_version(worker: Worker) -> None:
    sft(worker)
    (job_id,) = [one for one in worker.queue.ids() if worker.queue.file(one).kind == "sft"]
    (worker.home.jobs / job_id / "trained.json").unlink()  # killed between publishing and reporting
    worker.do(worker.queue.file(job_id))
    assert worker.store.versions("p") == [0, 1]
    assert worker.queue.training_outcome(job_id).result.version == 1  # type: ignore[union-attr]


def test_a_job_whose_rows_are_not_there_yet_is_not_ready(worker: Worker) -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    job = worker.queue.accept("sft", "p", request=SFTRequest(conversations=[Conversation(messages=messages)]))
    assert not worker.queue.ready(job.id)
    worker.queue.write_rows(job.id, given())
    assert worker.queue.ready(job.id)
