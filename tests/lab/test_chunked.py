"""An encoder that processes tokens in chunks: same result, same gradients, less memory."""

from contextlib import contextmanager

import pytest
import torch
from support.measured import TensorBytes

from scperformer.attention.tokens import Batch
from scperformer.base import memory
from scperformer.cli.compose import make_config
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.encoder import Encoder
from scperformer.model import inference
from scperformer.model.inference import fast_cpu

GENES = 40
LINEAR = {
    "favor": {"name": "favor", "num_features": 9},
    "favor published": {"name": "favor", "num_features": 9, "epsilon": 1e-4},
    "favor relu": {"name": "favor", "kernel": "relu", "num_features": 9},
    "rbf": {"name": "rbf", "num_anchors": 7},
}
each_linear = pytest.mark.parametrize("attention", LINEAR.values(), ids=LINEAR)


def make(attention: dict, num_genes: int = GENES, unexpressed: str = "skip", **options) -> Encoder:
    """An encoder in eval mode; its weights depend only on the attention."""
    torch.manual_seed(0)
    sizes = {"dim": 12, "depth": 2, "num_heads": 3, "head_dim": 4, "dropout": 0.0}
    tokens = TokensConfig(name="continuous", unexpressed=unexpressed)
    generator = torch.Generator().manual_seed(0)
    return Encoder(
        num_genes, tokens, ModelConfig(**{**sizes, **options}), attention, generator
    ).eval()


def make_batch(num_cells: int = 3, length: int = 33, num_genes: int = GENES) -> Batch:
    generator = torch.Generator().manual_seed(1)
    genes = torch.stack(
        [torch.randperm(num_genes, generator=generator)[:length] for _ in range(num_cells)]
    )
    x = torch.rand(num_cells, length, generator=generator, dtype=torch.float32) * 5
    keep = torch.arange(length) < torch.tensor([length, length // 2, 3, length])[:num_cells, None]
    return Batch(genes, x, x, keep)


def run(encoder: Encoder, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The output for real tokens and the gradients of every parameter."""
    encoder.zero_grad()
    out = encoder(batch)[batch.keep_BL]
    weights = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).to(out)
    (out * weights).sum().backward()
    return out.detach(), {
        name: p.grad for name, p in encoder.named_parameters() if p.grad is not None
    }


def in_float64(batch: Batch) -> Batch:
    return Batch(batch.genes_BL, batch.values_BL.double(), batch.x_BL.double(), batch.keep_BL)


@each_linear
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("size", [7, 33])
def test_chunks_give_the_same_result_and_gradients(attention, checkpointing, size):
    batch = in_float64(make_batch())
    expected = run(make(attention).double(), batch)
    actual = run(make(attention, chunk_tokens=size, checkpointing=checkpointing).double(), batch)
    # float64: sums in another order.
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["softmax", "window", "lsh", "conv", "linformer"])
def test_checkpointing_gives_the_same_gradients_with_other_mechanisms(name):
    batch = in_float64(make_batch())
    attention = {"name": name}
    expected = run(make(attention).double(), batch)
    actual = run(make(attention, checkpointing=True, chunk_tokens=7).double(), batch)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_recomputed_chunks_repeat_their_dropout():
    def gradients(checkpointing):
        encoder = (
            make(LINEAR["favor"], dropout=0.5, chunk_tokens=7, checkpointing=checkpointing)
            .double()
            .train()
        )
        torch.manual_seed(3)
        return run(encoder, in_float64(make_batch(num_cells=1)))

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-9, atol=1e-10)


def test_recomputed_chunks_repeat_their_precision():
    def gradients(checkpointing):
        encoder = make(LINEAR["favor"], chunk_tokens=7, checkpointing=checkpointing)
        with torch.autocast("cpu", torch.bfloat16):
            return run(encoder, make_batch(num_cells=1))

    # Gradients of the chunks are added up in float32 here, in bf16 there: 8 bits.
    torch.testing.assert_close(gradients(True), gradients(False), rtol=0.05, atol=0.05)


def test_a_cell_has_the_same_bits_alone_and_in_a_batch():
    encoder = make(LINEAR["favor"], chunk_tokens=7)
    batch = make_batch()
    with torch.inference_mode():
        together = encoder(batch)
        for cell in range(len(batch.keep_BL)):
            fields = (batch.genes_BL, batch.values_BL, batch.x_BL, batch.keep_BL)
            alone = encoder(Batch(*(field[cell : cell + 1] for field in fields)))
            assert torch.equal(together[cell : cell + 1], alone)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_all_tokens_at_once(monkeypatch):
    encoder, batch, seen = make(LINEAR["favor"], chunk_tokens=7).cuda(), make_batch().to("cuda"), []
    attention = encoder.stack[0].attention
    monkeypatch.setattr(
        type(attention), "packed", lambda _, qkv, *rest: seen.append(qkv.shape[-2]) or qkv[2]
    )
    encoder(batch)
    assert seen == [33, 33]  # each layer once


def test_products_of_onednn_are_exact_and_the_setting_is_restored():
    before = torch.backends.mkldnn.matmul.fp32_precision
    a, b = torch.randn(2, 300, 300, generator=torch.Generator().manual_seed(0))
    with fast_cpu("cpu"):
        product = a @ b
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    exact = a.double() @ b.double()
    # float32 has 24 bits: sums of 300 products of size 1.
    torch.testing.assert_close(product.double(), exact, rtol=0, atol=1e-4)
    with fast_cpu("cpu", "bf16-mixed"):  # layers in bfloat16 surround it
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    with pytest.raises(RuntimeError, match="stop"), fast_cpu("cpu"):
        raise RuntimeError("stop")
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_fast_cpu_keeps_freed_memory_only_on_a_cpu(monkeypatch):
    used = []

    @contextmanager
    def freed_memory(setting):
        used.append(setting)
        yield

    monkeypatch.setattr(inference, "freed_memory", freed_memory)
    with fast_cpu("cuda"):
        assert used == []
    with fast_cpu("cpu"):
        assert used == [memory.KEPT]


@pytest.mark.slow
def test_scberts_encoder_in_chunks_never_holds_phi():
    """Forward and backward with 16,907 tokens: no tensor is as large as phi of one layer (10 heads x 16,907 x 266)."""
    cfg = make_config(
        "train",
        ["inputs=[x]", "label_key=x", "model=scbert", "model.positions=gene", "model.depth=1"],
    )
    encoder = Encoder(16906, cfg.tokens, cfg.model, cfg.attention, torch.Generator().manual_seed(0))
    genes = torch.arange(16907)[None]
    with TensorBytes() as tensors:
        encoder(Batch(genes, genes % 6, torch.zeros(1, 16907), genes >= 0)).sum().backward()
    # the largest tensors are the tokens and the gradient of the gene table
    assert tensors.largest <= 16907 * 200 * 4


@pytest.mark.parametrize("case", ["favor", "rbf", "favor published", "favor relu"])
@pytest.mark.parametrize("num_expressed", [0, 5, 30], ids=["none", "few", "most"])
def test_keys_of_unexpressed_genes_are_computed_once_in_prediction(
    case, num_expressed, monkeypatch
):
    """Where sums can be subtracted and few genes are expressed, of measured genes; else directly."""
    encoder = make(LINEAR[case], unexpressed="full", chunk_tokens=7).double()
    x = torch.zeros(2, GENES + 1, dtype=torch.float64)
    x[:, :num_expressed] = torch.rand(
        2, num_expressed, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    keep = torch.ones(2, GENES + 1, dtype=torch.bool)
    keep[:, 3:9] = False  # not measured, one of which has a value all the same
    encoder.unexpressed.measured_G = keep[0, :-1]
    batch = Batch(torch.arange(GENES + 1).expand(2, -1), x, x, keep)
    expected = encoder(batch)[keep]  # with gradients
    seen = []
    chunk_sums = encoder.stack[0].chunk_sums
    monkeypatch.setattr(
        encoder.stack[0],
        "chunk_sums",
        lambda h, keep: seen.append(h.shape[1]) or chunk_sums(h, keep),
    )
    for _ in range(2):
        seen.clear()
        with torch.no_grad():
            torch.testing.assert_close(encoder(batch)[keep], expected, rtol=1e-10, atol=1e-12)
    is_once = case in ("favor", "rbf", "favor relu") and num_expressed < 30
    assert (sum(seen) < 2 * 20) == is_once  # tokens whose keys were computed
