"""The table of epochs: what is written is what is read."""

from scperformer.training.history import COLUMNS, read_history, write_history


def epochs(num):
    return [dict.fromkeys(COLUMNS, 0.125) | {"epoch": float(number)} for number in range(1, num + 1)]


def test_the_table_is_read_as_it_was_written_and_replaced_by_a_longer_one(tmp_path):
    for num in (1, 3):
        write_history(epochs(num), tmp_path)
        assert read_history(tmp_path) == epochs(num)
    assert (tmp_path / "metrics.csv").read_text().splitlines()[:2] == [",".join(COLUMNS), "1" + ",0.125" * 5]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
