"""Where runs come from, in words that follow from their logs."""

from synthetic import run_log, runs

from natgrad_paper.report import provenance

SETTINGS = {"damping": {"initial": 3.0}, "budget": {"seconds": 45.0, "iterations": None}}


def test_settings_are_listed_with_their_methods_where_these_differ():
    found = runs(
        run_log("a", settings=SETTINGS, order=0), run_log("b", settings={"damping": {"initial": 9.0}})
    )
    assert provenance.fields(found) == [("damping.initial", "3.0 (a); 9.0 (b)"), ("budget.seconds", "45.0")]


def test_the_command_says_what_was_changed():
    known = {"small": {"damping": {"initial": 3.0}, "budget": {"seconds": 45.0, "iterations": None}}}

    def command(*logs):
        return provenance.command(runs(*logs), known)

    plain = command(run_log(settings=SETTINGS), run_log(seed=1, settings=SETTINGS))
    assert plain == "natgrad run curves --preset small --methods ngd --seeds 0,1"
    changed = {
        "damping": {"initial": 9.0},
        "budget": {"seconds": None, "iterations": 50},
        "old": {"field": 1},
    }
    words = command(run_log(settings=changed))
    assert words.endswith("--seeds 0, --set damping.initial=9.0 --set budget.iterations=50")
    both = command(run_log("a", settings=changed, order=0), run_log("b", settings=SETTINGS))
    assert "damping.initial" not in both  # not in all that state it
    file = run_log(settings=SETTINGS)
    file.header["data"]["file"] = "my faces.mat"
    assert command(file).endswith("--seeds 0, --data 'my faces.mat'")
    own = run_log(settings=changed)
    own.header["preset"] = "mine"
    assert "--preset mine.toml" in command(own)
    assert "--set" not in command(own)


def test_what_differs_from_the_paper_is_what_logs_state_otherwise():
    found = runs(
        run_log("a", settings=SETTINGS, order=0), run_log("b", settings={"damping": {"initial": 9.0}})
    )
    paper = {"damping": {"initial": 3.0}, "budget": {"seconds": None}, "hf": {"maxiter": 250}}
    assert provenance.departures(found, paper) == [("damping.initial", "3.0 (a); 9.0 (b)", "3.0")]
    assert provenance.departures(found, {}) == []


def test_versions_are_said_once_and_apart_where_they_differ():
    one, other = run_log(seed=0), run_log(seed=1)
    other.header["versions"] = {"natgrad": "0", "jax": "2", "optax": "3"}
    assert provenance.versions(runs(one, other)) == "natgrad 0, jax 1 and 2, optax 3"
    other.header["cores"] = 1
    assert provenance.machines(runs(one, other)) == "1 core, Linux; 2 cores, Linux"


def test_the_ratio_is_that_of_each_line():
    rules = {"sgd": None, "ngd": "linear", "hf": "quadratic", "kncg": "quadratic"}
    logs = [run_log(name, order=order) for order, name in enumerate(rules)]
    for each, model in zip(logs, rules.values(), strict=True):
        each.header["damping"] = model and {"reduction": model}
    assert provenance.ratios(runs(*logs)) == [
        "λ follows the ratio with the linear model (NGD)",
        "λ follows the ratio with the quadratic model (HF, KNCG)",
    ]
    assert provenance.ratios(runs(*logs[:2])) == ["λ follows the ratio with the linear model"]
    assert provenance.ratios(runs(logs[0])) == []


def test_cases_are_counted_as_the_data_say():
    assert provenance.cases({"name": "x", "sha256": "y"}) == ""
    assert (
        provenance.cases({"train": [9, 2], "valid": [3, 2], "test": [2, 2]})
        == "9 training, 3 validation and 2 test cases"
    )
    assert provenance.cases({"train": [9, 2], "glyphs": [62, 4]}) == "9 training cases, 62 glyphs"
