"""Would the tests notice? Errors of sign, index and constant, seeded, each against the tests that mirror its file."""

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mutants import count, mutant

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LIBRARY, TRAINING = SOURCE / "natgrad", SOURCE / "natgrad_paper" / "training"
SECONDS = 150
"""Of the processor."""
SEED = int(os.environ.get("NATGRAD_MUTANTS_SEED", "0"))
PARTS = {
    "likelihood": {"likelihood.py": ["test_likelihood.py", "test_changes.py", "test_positions.py"]},
    "metric": {
        "metric/metrics.py": ["test_metric.py", "test_positions.py"],
        "metric/operator.py": [
            "test_metric.py::test_two_terms_have_the_factors_of_both_one_below_the_other",
            "test_metric.py::test_one_term_draws_what_it_would_alone_and_two_draw_for_themselves",
            "test_metric.py::test_a_formed_matrix_takes_a_pass_per_parameter_or_per_output_whichever_are_fewer",
            "test_metric.py",
            "solve/test_direct.py",
            "methods/test_fan.py",
        ],
    },
    "solve": {
        "solve/cg.py": [
            "solve/test_failures.py::test_zero_right_hand_side",
            "solve/test_failures.py::test_a_right_hand_side_of_length_one_is_like_any_other",
            "solve/test_cg.py",
            "solve/test_failures.py",
            "solve/test_properties.py",
            "methods/test_hessian_free.py",
        ],
        "solve/truncated.py": ["solve/test_cg.py", "methods/test_hessian_free.py"],
        "solve/direct.py": [
            "solve/test_direct.py::test_memory_is_that_of_the_matrix_and_its_smaller_side_squared",
            "solve/test_direct.py::test_a_shift_below_rounding_is_a_shift",
            "solve/test_direct.py::test_a_matrix_of_rank_one_has_a_least_squares_solution",
            "solve/test_direct.py::test_a_zero_matrix_leaves_the_right_hand_side_over_the_shift",
            "solve/test_direct.py",
        ],
        "solve/minres_qlp.py": [
            "solve/test_failures.py::test_zero_right_hand_side",
            "solve/test_failures.py::test_a_right_hand_side_of_length_one_is_like_any_other",
            "solve/test_golden.py::test_three_vectors_move_by_a_matrix",
            "solve/test_golden.py::test_the_latest_vectors_are_remembered",
            "solve/test_golden.py::test_the_bound_on_the_length_is_1e5_in_double_and_1e3_in_single_precision",
            "solve/test_golden.py",
            "solve/test_failures.py",
            "solve/test_properties.py",
        ],
        "solve/reflections.py": ["solve/test_golden.py"],
        "solve/problem.py": ["solve/test_failures.py", "solve/test_properties.py"],
        "solve/program.py": ["solve/test_program.py"],
        "solve/result.py": ["solve/test_failures.py"],
    },
    "directions": {
        "directions/base.py": ["test_step.py"],
        "directions/natural.py": [
            "methods/test_hessian_free.py::test_rows_are_the_stored_iterates_newest_first_and_zero_where_none_was_stored",
            "methods/test_hessian_free.py::test_there_is_a_row_for_every_iterate_that_may_be_stored",
            "test_step.py",
            "methods/test_conjugate.py",
            "methods/test_hessian_free.py",
        ],
        "directions/conjugate.py": ["methods/test_conjugate.py"],
        "directions/krylov.py": ["methods/test_krylov.py"],
        "directions/tonga.py": ["methods/test_tonga.py"],
        "directions/fan.py": ["methods/test_fan.py"],
    },
    "search": {
        "search/line.py": [
            "test_search.py::test_a_bracket_goes_to_the_bottom_of_its_parabola",
            "test_search.py::test_an_open_bracket_goes_twice_as_far_or_begins",
            "test_search.py::test_without_a_parabola_the_longer_half_is_halved",
            "test_search.py",
        ],
        "search/base.py": ["test_search.py", "methods/test_conjugate.py"],
        "search/cobyla.py": ["test_search.py", "methods/test_conjugate.py"],
        "search/subspace.py": ["methods/test_krylov.py"],
        "search/backtrack.py": ["methods/test_hessian_free.py"],
        "search/pick.py": [
            "methods/test_fan.py::test_pick_takes_the_first_row_that_keeps_a_hundredth_of_its_promise",
            "methods/test_fan.py::test_pick_shortens_the_last_row_where_none_is_lower",
            "methods/test_fan.py::test_pick_gives_up_at_last",
            "methods/test_fan.py",
        ],
    },
    "damping": {
        "damping.py": ["test_damping.py", "methods/test_calibration.py"],
        "calibration.py": ["test_damping.py", "methods/test_calibration.py"],
    },
    "step": {
        "packed.py": ["test_packed.py"],
        "orthogonal.py": ["test_orthogonal.py"],
        "judge.py": ["test_judge.py", "test_step.py", "test_nonfinite.py", "test_damping.py"],
        "examples.py": ["test_chunks.py", "test_step_batches.py", "test_metric.py"],
    },
}
"""The tests that mirror each file. The first test that fails ends a run, so quick ones come first."""
TRAINING_PARTS = {
    name: ["paper/training/test_" + name]
    for name in (
        "batches.py",
        "stopping.py",
        "log.py",
        "checkpoint.py",
        "loop.py",
        "directory.py",
        "measures.py",
    )
}
"""The same of the training room."""
COUNTS = {"likelihood": 7, "metric": 7, "solve": 8, "directions": 7, "search": 7, "damping": 7, "step": 7}


def drawn(part, wanted):
    """Return errors of a part, and the tests each is up against."""
    folder, files = (TRAINING, TRAINING_PARTS) if part == "training" else (LIBRARY, PARTS[part])
    found = [
        (folder / name, number, tests)
        for name, tests in files.items()
        for number in range(count(folder / name))
    ]
    chosen = np.random.default_rng([SEED, *part.encode()]).choice(len(found), wanted, replace=False)
    return [(mutant(path, number), tests) for path, number, tests in (found[choice] for choice in chosen)]


class Trial:
    """A copy of the library in which an error can be made."""

    def __init__(self, directory):
        self.source = directory / "src"
        shutil.copytree(SOURCE, self.source, ignore=shutil.ignore_patterns("__pycache__"))
        outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.environment = {
            **outer,
            "PYTHONPATH": str(self.source),
            "PYTHONDONTWRITEBYTECODE": "1",
            # What is not mutated was compiled before.
            "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR")
            or str(directory / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
        }

    def run(self, tests, limit=None):
        """Return how the tests ended: "passed", "failed", or "late" where the limit came first."""
        paths = [str(ROOT / "tests" / name) for name in tests]
        # A file would swallow what is named of it, and run it in its own place.
        named_first = "--keep-duplicates"
        command = [sys.executable, "-m", "pytest", "-x", "-q", named_first, "-m", "not long", *paths]
        if limit is not None:
            command = ["sh", "-c", f'ulimit -t {limit}; exec "$@"', "sh", *command]
        result = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, check=False)
        return "late" if result.returncode < 0 else "failed" if result.returncode else "passed"

    def outcome(self, wrong, tests):
        path = self.source / wrong.path.relative_to(SOURCE)
        path.write_text(wrong.source)
        try:
            return self.run(tests, SECONDS)
        finally:
            path.write_text(wrong.path.read_text())


def hunt(part, wanted, directory):
    """Return how many of a part's errors were caught, having said which were not."""
    trial = Trial(directory)
    chosen = drawn(part, wanted)
    for tests in sorted({tuple(tests) for _, tests in chosen}):
        assert trial.run(tests) == "passed", f"{tests}: expected to pass where there is no error"
    caught = 0
    for wrong, tests in chosen:
        began = time.monotonic()
        outcome = trial.outcome(wrong, tests)
        caught += outcome == "failed"
        print(
            f"{'caught' if outcome == 'failed' else outcome}: {wrong} ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
    print(f"{part}: {caught} of {wanted} errors caught")
    return caught


def test_a_sample_of_errors_is_caught(tmp_path):
    assert hunt("damping", 1, tmp_path) == 1


@pytest.mark.long
def test_fifty_errors(tmp_path):
    caught = {part: hunt(part, wanted, tmp_path / part) for part, wanted in COUNTS.items()}
    print(f"{sum(caught.values())} of {sum(COUNTS.values())} errors caught: {caught}")
    assert sum(COUNTS.values()) == 50
    assert sum(caught.values()) >= 48


@pytest.mark.long
def test_twenty_errors_in_the_training_room(tmp_path):
    """One in six is none: how long never is, or which number of steps a program is compiled with."""
    assert hunt("training", 20, tmp_path) >= 16


def test_errors_are_real_and_of_every_kind():
    chosen = [each for part, wanted in {**COUNTS, "training": 20}.items() for each in drawn(part, wanted)]
    assert {wrong.kind for wrong, _ in chosen} == {"sign", "index", "constant"}
    for wrong, tests in chosen:
        assert ast.dump(ast.parse(wrong.source)) != ast.dump(ast.parse(wrong.path.read_text())), wrong
        assert all((ROOT / "tests" / name.partition("::")[0]).exists() for name in tests)
