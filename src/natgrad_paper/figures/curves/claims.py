"""What the paper claims of figure 3, and the tests that decide it: orderings by one rule, which the page states."""

from natgrad_paper.report.claims import Below, BestBelow, Claim, Finding, Reliable, Verdict
from natgrad_paper.report.load import Runs
from natgrad_paper.report.views import CLOCK, RECONSTRUCTION

GROUPS = (
    ("The paper’s methods", ("sgd", "ngd", "ngd-l", "ncg-l", "ncg-l-cobyla", "ncg-f")),
    ("Controls", ("ngd-same", "ngd-diag", "ncg-f-diag", "ksd-without", "ngd-search-same", "ngd-search-fresh",
                  "ngd-search-full")),
    ("Others", ("hf", "ksd", "tonga", "ncg-q", "kncg", "nesterov", "adam", "lbfgs")),
)  # fmt: skip
NATURAL = ("ngd", "ngd-l", "ncg-l", "ncg-f", "ncg-q", "kncg", "hf", "ksd")
TIME = tuple(panel for panel in RECONSTRUCTION.panels if panel.axis == CLOCK)


def memory(runs: Runs) -> list[Finding]:
    """Compare the vectors of the parameters' size that are kept: NCG the last step, KSD also its whole basis."""
    stated = (log.header["settings"].get("ksd", {}).get("size") for log in runs.method("ksd"))
    sizes = sorted({size for size in stated if size})
    if not sizes:
        return [Finding("no runs of ksd that state its size", Verdict.ABSENT)]
    basis, kept = (" or ".join(str(size + more) for size in sizes) for more in (0, 1))
    words = f"vectors kept besides the gradient: NCG 1, KSD {kept} (its basis of {basis} and the last step)"
    return [Finding(words, Verdict.HOLDS)]


CLAIMS = (
    Claim(
        "a",
        "Natural gradient runs reliably on small batches when metric and gradient use different samples.",
        "Every run of NGD goes to its end and learns; NGD below NGD with the same samples in both.",
        (Reliable("ngd"), Below("ngd", "ngd-same")),
    ),
    Claim(
        "b",
        "Natural conjugate gradient (NCG-L) converges faster than natural gradient with a line search (NGD-L).",
        "NCG-L below NGD-L.",
        (Below("ncg-l", "ngd-l"),),
    ),
    Claim(
        "c",
        "Searching for the new direction (NCG-L) beats Polak and Ribière’s formula for it (NCG-F).",
        "NCG-L below NCG-F.",
        (Below("ncg-l", "ncg-f"),),
    ),
    Claim(
        "d",
        "All natural methods beat stochastic gradient descent, per iteration and in time.",
        "Each of NGD, NGD-L, NCG-L and NCG-F below SGD.",
        tuple(Below(name, "sgd") for name in ("ngd", "ngd-l", "ncg-l", "ncg-f")),
    ),
    Claim(
        "e",
        "The full metric beats its diagonal.",
        "NGD below NGD with the diagonal; NCG-F below NCG-F with the diagonal, which is Gonzalez and Dorronsoro’s.",
        (Below("ngd", "ngd-diag"), Below("ncg-f", "ncg-f-diag")),
    ),
    Claim(
        "f",
        "Krylov Subspace Descent gains from the previous step in its space, and pays with the memory for that "
        "space where natural conjugate gradient keeps one vector.",
        "KSD below KSD without the last step; KSD of size k keeps k + 1 vectors of the parameters’ size, NCG one.",
        (Below("ksd", "ksd-without"), memory),
    ),
    Claim(
        "g",
        "A line search on a minibatch overfits it; fresh or larger samples cure that.",
        "Natural gradient on minibatches: the search on a fresh batch, and that on all cases, below the search on "
        "the same batch.",
        (Below("ngd-search-fresh", "ngd-search-same"), Below("ngd-search-full", "ngd-search-same")),
    ),
    Claim(
        "h",
        "The best natural method reaches a lower training error than tuned Adam and tuned Nesterov momentum.",
        "At equal training time only: the natural method with the least mean log error below Adam, and below Nesterov. "
        "It is picked on the runs it is judged by, which favours it.",
        (BestBelow(NATURAL, "adam"), BestBelow(NATURAL, "nesterov")),
        source="Not the paper’s claim but a sceptic’s question.",
    ),
    Claim(
        "i",
        "Natural gradient on minibatches (NGD) keeps up with natural gradient in batch mode (NGD-L).",
        "At equal training time only: NGD below NGD-L.",
        (Below("ngd", "ngd-l", TIME),),
        source="The paper compares the two runs and names no order; this one is ours.",
    ),
    Claim(
        "j",
        "Krylov Subspace Descent converges slightly faster than Hessian-Free.",
        "KSD below Hessian-Free.",
        (Below("ksd", "hf"),),
        source="Vinyals and Povey’s claim, from which the paper expects its own (b).",
    ),
)
