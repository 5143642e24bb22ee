"""`natgrad tune`: the better rate, from seeds that no result uses."""

import pytest

pytestmark = pytest.mark.usefixtures("fast_compile")


def test_the_better_rate_is_found(tmp_path, invoke):
    out = tmp_path / "trials.csv"
    result = invoke("tune", "sums", "sgd", "--grid", "sgd.rate=1e-9,1e-1", "--preset", "smoke", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output.strip().endswith("Best: --set sgd.rate=1e-1")
    assert len(out.read_text().splitlines()) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["trials.csv"]


@pytest.mark.parametrize("seed", ["0", "99"])
def test_seeds_of_results_are_refused(invoke, seed):
    result = invoke("tune", "sums", "sgd", "--grid", "sgd.rate=1", "--preset", "smoke", "--seed", seed)
    assert result.exit_code == 2
    assert f"--seed: expected 100 or more, since smaller seeds are for results, found {seed}" in result.output


def test_a_table_of_trials_that_cannot_be_written_is_one_line(tmp_path, invoke):
    given = (
        "tune",
        "sums",
        "sgd",
        "--grid",
        "sgd.rate=1e-1",
        "--preset",
        "smoke",
        "--out",
        tmp_path / "no" / "t.csv",
    )
    result = invoke(*given)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == f"natgrad: {tmp_path}/no/t.csv: No such file or directory"
