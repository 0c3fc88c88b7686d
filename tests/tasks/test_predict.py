"""Files that are annotated one after the other."""

from pathlib import Path

from scperformer.annotation import predict


def test_an_input_that_is_removed_later_does_not_spoil_a_finished_output(
    counts_adata, write, tiny_model, command, monkeypatch
):
    sample = write(counts_adata)
    annotate = predict.annotate_file

    def annotate_and_remove(path, *rest):
        annotated = annotate(path, *rest)
        Path(path).unlink()
        return annotated

    monkeypatch.setattr(predict, "annotate_file", annotate_and_remove)
    ran = command("predict", sample, f"model_path={tiny_model}", "output=calls.csv")
    assert ran.code == 0, ran.err
    assert Path("calls.csv").is_file()
