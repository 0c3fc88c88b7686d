"""The operations that benchmarks/roofline.py counts."""

import torch


def test_products_and_exponentials_are_all_counted(roofline):
    num_tokens, width, heads, head_width, features = 64, 200, 10, 64, 266
    h_1LD = torch.randn(1, num_tokens, width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), roofline.Meter() as meter:
        roofline.run_ours(h_1LD, roofline.our_layers({}).eval())
    inner = heads * head_width
    weights = 4 * width * inner + 2 * width * 4 * width  # queries, keys, values and output; feed-forward
    attention = heads * features * (4 * head_width + 1)  # two projections, sums, what queries read and their divisors
    most = 6 * 2 * num_tokens * (weights + attention)
    least = most - 6 * 2 * num_tokens * heads * features  # divisors may be sums instead of products
    assert least <= meter.work["products"].count <= most
    assert meter.work["exponentials"].count >= 6 * 2 * num_tokens * heads * features  # of queries and of keys
