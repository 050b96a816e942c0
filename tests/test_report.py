"""The report: cells, intervals, budgets and the summary, from lines alone."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

from benchmarks import pages
from neuralsort.experiments import record
from neuralsort.experiments.record import Line
from neuralsort.experiments.reporting import paper, report, summary, tables
from neuralsort.experiments.reporting.list_tables import SORT, choices_table, list_table
from neuralsort.experiments.reporting.selection import budgets, chosen, per_seed, within
from neuralsort.experiments.studies.median import MedianConfig, MedianStudy
from neuralsort.experiments.studies.running import run
from neuralsort.experiments.studies.sorting import SortConfig, SortStudy
from neuralsort.experiments.training.plan import ConfigError


def small(kind, tmp_path, **options):
    sizes = {"n": 3, "places": 2, "steps": 2, "batch": 4, "test_lists": 20, "validation_lists": 8}
    return kind(**sizes | {"run": tmp_path / "run", "results": tmp_path / "results"} | options)


def fake_line(method="neuralsort", n=5, exact=0.9, **options):
    history = [{"step": 1, "seconds": 9.0, "loss": 1.0, "exact_match": exact, "log_variance": -3.0}]
    line = {
        "study": "sort",
        "method": method,
        "data": "mnist",
        "sizes": {"n": n, "places": options.pop("places", 4)},
        "recipe": "fast",
        "seed": 0,
        "tau": 0.5,
        "metrics": {"exact_match": exact, "element_wise": 0.95, "squared_difference": 0.0123},
        "intervals": {"exact_match": (exact - 0.01, exact + 0.01)},
        "validation": {"exact_match": exact},
        "steps": 1,
        "wall_seconds": 660.0,
        "config": {"plan": {"steps": 1, "batch": 4}, "steps_of_recipe": 9, "train_n": n},
        "trials": [{"tau": 0.5, "history": history}],
        "machine": {"cores": 2, "processor": "abacus"},
        "commit": "0123456789",
        "extras": {"examples": []},
    }
    return Line(**line | options)


def with_steps(line: Line, steps: int) -> Line:
    plan = line.plan | {"steps": steps}
    return replace(line, steps=steps, config=line.config | {"plan": plan})


def test_table_has_ours_the_papers_and_what_is_missing():
    table = list_table(SORT, [fake_line()], "mnist")
    rows = {row[0][0]: row[1:] for row in table.rows}
    column = paper.SORT_LENGTHS.index(5)
    cell = rows["Deterministic NeuralSort"][column]
    interval = "1 seed, 95 % over lists: 0.890 to 0.910"
    assert cell == ["0.900 (0.950)", interval, "11 min", "paper: 0.837 (0.927)"]
    assert rows["Deterministic NeuralSort"][0] == ["missing", "paper: 0.930 (0.951)"]
    assert rows["Vanilla"][column] == ["missing", "paper: 0.093 (0.603)"]


def test_seeds_share_a_cell_and_the_last_line_of_a_run_counts():
    lines = [fake_line(exact=0.1), fake_line(exact=0.8), fake_line(exact=0.9, seed=1)]
    table = list_table(SORT, chosen(lines), "mnist")
    (row,) = [row for row in table.rows if row[0][0] == "Deterministic NeuralSort"]
    assert row[2][:2] == ["0.850 (0.950)", "2 seeds, range: 0.800 to 0.900 (0.950 to 0.950)"]


def test_three_seeds_have_students_interval():
    values = [0.8, 0.82, 0.87]
    lines = [fake_line(exact=exact, seed=seed) for seed, exact in enumerate(values)]
    table = list_table(SORT, lines, "mnist")
    (row,) = [row for row in table.rows if row[0][0] == "Deterministic NeuralSort"]
    half = 4.302653 * np.std(values, ddof=1) / 3**0.5
    low, high = np.mean(values) - half, np.mean(values) + half
    expected = f"3 seeds, 95 %: {low:.3f} to {high:.3f} (0.950 to 0.950)"
    assert row[2][:2] == ["0.830 (0.950)", expected]


def test_runs_that_differ_in_any_option_are_different_runs():
    one = fake_line()
    plan = one.plan | {"batch": 5}
    others = [
        with_steps(one, 2),
        replace(one, config=one.config | {"plan": plan}),
        replace(one, sizes=one.sizes | {"test_lists": 7}),
        replace(one, precision="64-true"),
    ]
    assert len(chosen([one, *others])) == 5
    again = replace(one, wall_seconds=1.0, commit="other", config=one.config | {"parameters": 7})
    assert chosen([one, again]) == [again]


def with_plan(line: Line, **options) -> Line:
    return replace(line, config=line.config | {"plan": line.plan | options})


def test_a_run_with_other_options_does_not_stand_in_for_a_seed():
    whole = [fake_line(exact=0.8, seed=seed) for seed in range(2)]
    others = [
        with_plan(fake_line(exact=0.1), lr=1.0),
        fake_line(exact=0.1, seed=2, precision="bf16-mixed"),
        fake_line(exact=0.1, sizes=whole[0].sizes | {"test_lists": 7}),
    ]
    for lines in ([*whole, *others], [*others, *whole]):
        table = list_table(SORT, chosen(lines), "mnist")
        (row,) = [row for row in table.rows if row[0][0] == "Deterministic NeuralSort"]
        assert row[2][0] == "0.800 (0.950)"
    assert per_seed([*whole[:1], others[0]]) == [others[0]]  # of equally many the last
    assert per_seed([]) == []


def test_methods_are_compared_under_one_plan_at_each_length():
    usual = [fake_line(method) for method in ("neuralsort", "vanilla", "sinkhorn")]
    more = [with_plan(one, batch=400) for one in (fake_line(exact=0.95), fake_line(exact=0.9, n=9))]
    (budget,) = budgets([*usual, *more])
    assert within([*more, *usual], budget) == [more[1], *usual]
    threads = with_plan(usual[0], threads=2)
    assert within([threads, *usual], budget) == [threads, *usual]
    # Tests at other lengths, and more seeds, do not make one run the usual one.
    odd = [with_plan(fake_line(seed=seed), lr=9.0) for seed in range(4)]
    odd += [replace(odd[0], sizes=odd[0].sizes | {"n": n}) for n in (3, 7, 9)]
    assert within([*usual, *odd], budget) == usual
    assert within([*odd, usual[0]], budget) == odd


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16-mixed"},
        {"sizes": {"n": 5, "places": 4, "test_lists": 3}},
        {"config": fake_line().config | {"temperature": "learned"}},
        {"config": fake_line().config | {"processes": 2}},
    ],
)
def test_a_method_with_other_options_than_most_is_not_compared(options):
    odd = fake_line("gumbel_sinkhorn", exact=1.0, **options)
    lines = [odd, fake_line(), fake_line("vanilla", exact=0.5), fake_line("sinkhorn", exact=0.5)]
    (budget,) = budgets(lines)
    assert within(lines, budget) == lines[1:]
    assert summary.compare(lines, "sort", "exact_match", larger=True) == []
    (_, *others) = tables.runs_table(lines).rows
    assert all(row[8] != tables.runs_table([odd]).rows[0][8] for row in others)


def test_of_several_settings_with_as_many_seeds_the_last_one_counts():
    one, other = (with_plan(fake_line(), lr=lr) for lr in (1.0, 2.0))
    assert per_seed([one, other, one]) == [one]
    assert chosen([one, other, one]) == [other, one]
    threads = with_plan(fake_line(seed=1), threads=2)
    assert per_seed([fake_line(), threads]) == [fake_line(), threads]
    plain = with_plan(fake_line(seed=1), overlap=1)
    assert per_seed([fake_line(), plain]) == [fake_line(), plain]
    network = fake_line(seed=1, digests={"network": "another"})
    assert per_seed([fake_line(), network]) == [network]
    # Networks show the temperature that was chosen for them.
    grid = fake_line().config | {"taus": [1.0, 2.0]}
    found = [fake_line(seed=i, config=grid, digests={"network": str(i)}) for i in range(3)]
    assert per_seed(found) == found


def test_plans_of_early_versions_have_no_overlap():
    early, late = fake_line(), with_plan(fake_line("vanilla"), overlap=1)
    (budget,) = budgets([early, late])
    assert within([early, late], budget) == [early, late]


def test_runs_of_different_budgets_are_never_compared():
    lines = [with_steps(fake_line(exact=0.9), 600), with_steps(fake_line("vanilla", exact=0.5), 20)]
    assert [one.steps for one in budgets(lines)] == [600, 20]
    for budget, other in zip(budgets(lines), ("0.500", "0.900"), strict=True):
        table = list_table(SORT, within(lines, budget), "mnist")
        assert other not in str(table.rows)
    search = replace(lines[0], config=lines[0].config | {"taus": [1.0, 2.0]})
    assert budgets([search]) == []
    options = {"larger": True, "others": ("vanilla",)}
    assert summary.compare(lines, "sort", "exact_match", **options) == []
    equal = [lines[0], with_steps(lines[1], 600)]
    (found,) = summary.compare(equal, "sort", "exact_match", **options)
    assert found.gain == pytest.approx(0.4)
    assert found.evidence is None
    assert summary.verdicts([found]) == ["n = 5: 0.400 ahead (too few seeds: 1 and 1)"]


def seeds(method: str, *values: float, **options) -> list[Line]:
    return [fake_line(method, exact=x, seed=i, **options) for i, x in enumerate(values)]


def test_the_summary_has_welchs_interval_of_the_difference():
    ours, theirs = (0.90, 0.91, 0.92), (0.5, 0.52, 0.56)
    lines = seeds("neuralsort", *ours) + seeds("vanilla", *theirs)
    options = {"larger": True, "others": ("vanilla",)}
    (found,) = summary.compare(lines, "sort", "exact_match", **options)
    a, b = np.var(ours, ddof=1) / 3, np.var(theirs, ddof=1) / 3
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 2)
    half = stats.t.ppf(0.975, freedom) * (a + b) ** 0.5
    gain = np.mean(ours) - np.mean(theirs)
    assert found.evidence is not None
    assert found.evidence[0] == pytest.approx((gain - half, gain + half))
    assert found.evidence[1] == pytest.approx(2 * stats.t.sf(gain / (a + b) ** 0.5, freedom))
    assert found.found == "n = 5: 0.910 against 0.527 (Vanilla)"
    low, high = gain - half, gain + half
    told = f"95 %: {low:.3f} to {high:.3f}; settled"
    assert summary.verdicts([found]) == [f"n = 5: {gain:.3f} ahead, {told}"]
    swapped = {"larger": True, "ours": "vanilla", "others": ("neuralsort",)}
    (other,) = summary.compare(lines, "sort", "exact_match", **swapped)
    assert summary.verdicts([other]) == [f"n = 5: {gain:.3f} behind, {told}"]
    close = seeds("neuralsort", *ours) + seeds("vanilla", 0.90, 0.91, 0.925)
    (equal,) = summary.compare(close, "sort", "exact_match", **options)
    assert summary.verdicts([equal])[0].endswith("; not settled")


@pytest.mark.parametrize("larger", [True, False])
def test_a_baseline_that_has_nothing_to_train_needs_no_seeds(larger):
    ours = 0.90, 0.91, 0.92
    lines = seeds("neuralsort", *ours) + [replace(one, steps=0) for one in seeds("constant", 0.5)]
    pair = [lines[:3], lines[3:]]
    found = summary.Comparison("here", *pair, "exact_match", larger)
    low, high = stats.t.interval(0.95, 2, np.mean(ours) - 0.5, stats.sem(ours))
    sign = 1 if larger else -1
    assert found.evidence is not None
    assert sorted(found.evidence[0]) == pytest.approx(sorted((sign * low, sign * high)))
    assert found.evidence[1] == pytest.approx(stats.ttest_1samp(ours, 0.5).pvalue)
    way = "ahead" if larger else "behind"
    told = f"here: 0.410 {way}, 95 %: {low:.3f} to {high:.3f}; settled"
    assert summary.verdicts([found]) == [told]
    few = replace(found, ours=lines[:2])
    assert summary.verdicts([few]) == [f"here: 0.405 {way} (too few seeds: 2 and 1)"]


def test_a_difference_that_one_length_settles_may_be_chance_among_five():
    lines = [
        line
        for n in (3, 5, 7, 9, 15)
        for line in (
            *seeds("neuralsort", 0.90, 0.91, 0.92, n=n),
            *seeds("vanilla", *((0.87, 0.88, 0.89) if n == 5 else (0.90, 0.91, 0.915)), n=n),
        )
    ]
    options = {"larger": True, "others": ("vanilla",)}
    found = summary.compare(lines, "sort", "exact_match", **options)
    assert summary.verdicts(found[1:2]) == [found[1].verdict(settled=True)]
    assert summary.verdicts(found)[1] == found[1].verdict(settled=False)
    few = [replace(one, ours=one.ours[:2]) if one is not found[1] else one for one in found]
    assert summary.verdicts(few)[1] == found[1].verdict(settled=False)


def test_the_best_of_the_baselines_is_the_best_on_validation():
    lines = [fake_line(), fake_line("vanilla", exact=0.5), fake_line("sinkhorn", exact=0.6)]
    lines[1] = replace(lines[1], validation={"exact_match": 0.7})
    options = {"larger": True, "others": ("vanilla", "sinkhorn")}
    (found,) = summary.compare(lines, "sort", "exact_match", **options)
    assert found.theirs == [lines[1]]


def test_a_seed_at_another_temperature_is_no_seed_of_the_cell():
    again = fake_line(exact=0.6, tau=2.0, config=fake_line().config | {"taus": [2.0]})
    lines = chosen([*seeds("neuralsort", 0.9, 0.8), again, *seeds("vanilla", 0.5, 0.5)])
    assert len(lines) == 5
    table = list_table(SORT, lines, "mnist")
    (row,) = [row for row in table.rows if row[0][0] == "Deterministic NeuralSort"]
    assert row[2][:2] == ["0.850 (0.950)", "2 seeds, range: 0.800 to 0.900 (0.950 to 0.950)"]
    options = {"larger": True, "others": ("vanilla",)}
    (found,) = summary.compare(lines, "sort", "exact_match", **options)
    assert found.found == "n = 5: 0.850 against 0.500 (Vanilla)"


def test_the_summary_has_the_claims_that_there_are_lines_for():
    lines = [
        *seeds("neuralsort", 0.9, 0.91, 0.92),
        *seeds("vanilla", 0.5, 0.51, 0.52),
        *seeds("sinkhorn", 0.7, 0.71, 0.72),
        *seeds("gumbel_sinkhorn", 0.01, 0.02, 0.03),
    ]
    (table,) = summary.summaries(lines)
    claims = [row[0][0] for row in table.rows]
    assert [claim.split()[0] for claim in claims] == ["NeuralSort", "NeuralSort", "The"]
    assert table.rows[1][1] == ["n = 5: 0.910 against 0.710 (Sinkhorn)"]
    assert table.rows[2][2][0].startswith("n = 5: 2 of 3 above the paper's own number")
    tuned = [replace(line, recipe="tuned") for line in lines]
    assert [one.title for one in summary.summaries(lines + tuned)][1:] == [
        "The same with the paper's network, tuned"
    ]
    digits = [replace(line, data="digits") for line in lines]
    assert summary.summaries(digits) == []


def test_the_summary_has_neuralsorts_longest_runs_beside_what_was_printed():
    ours = [*seeds("neuralsort", 0.9, 0.91, 0.92), fake_line(n=9, exact=0.645)]
    network = [
        with_steps(replace(fake_line(n=n, exact=exact), recipe="tuned"), steps)
        for n, exact, steps in ((5, 0.60, 10), (5, 0.80, 12), (9, 0.60, 12), (15, 0.1, 10))
    ]
    first, second = (table.rows[0] for table in summary.summaries(ours + network))
    assert first[0] == second[0]
    assert "0.837 of the lists of 5" in first[0][0]
    assert first[1] == ["Runs of 1 steps:", "n = 5: 0.910", "n = 9: 0.645"]
    assert first[2][1:] == [
        "n = 5: 0.885 to 0.935 over 3 seeds; above 0.837 of the paper",
        "n = 9: 0.635 to 0.655 over lists; around 0.649 of the paper",
    ]
    again = "Prillo and Eisenschlos (2020)"
    assert second[1] == ["Runs of 12 steps:", "n = 5: 0.800", "n = 9: 0.600"]
    assert second[2][1:] == [
        f"n = 5: 0.790 to 0.810 over lists; below 0.837 of the paper, around 0.797 of {again}",
        f"n = 9: 0.590 to 0.610 over lists; below 0.649 of the paper, above 0.547 of {again}",
    ]


def test_the_summary_says_how_gradients_vary_with_the_temperature():
    trials = [
        {"tau": tau, "history": [{"step": 1, "exact_match": 0.5, "log_variance": value}]}
        for tau, value in ((1.0, -3.0), (2.0, -2.0), (4.0, -4.0), (8.0, -5.0), (16.0, -6.0))
    ]
    sweep = fake_line(trials=trials, config=fake_line().config | {"taus": [1, 2, 4, 8, 16]})
    shorter = replace(
        sweep,
        sizes=sweep.sizes | {"n": 3},
        trials=trials[2:] + trials[:1],
        config=sweep.config | {"train_n": 3},
    )
    others = [
        replace(sweep, sizes=sweep.sizes | {"n": 9}),  # tested again, at another length
        replace(sweep, seed=1),
        replace(sweep, config=sweep.config | {"temperature": "annealed"}),
    ]
    (table,) = summary.summaries([sweep, shorter, *others])
    ((claim, here, sure),) = table.rows
    assert "temperature" in claim[0]
    ends = "-3.0 to -6.0 (tau 1 to 16)"
    assert here == [f"Deterministic NeuralSort, logarithms: n = 3 {ends}, n = 5 {ends}"]
    (told,) = sure
    assert told.startswith("Deterministic NeuralSort: falls in 6 of 7 steps of the temperature, ")


def test_the_table_of_temperatures_has_those_that_longer_runs_use():
    def search(tau, **options):
        found = {0.5: [0.1, 0.7], 2.0: [0.2]}
        trials = [
            {"tau": one, "history": [{"step": 1, "exact_match": x} for x in values]}
            for one, values in found.items()
        ]
        config = fake_line().config | {"taus": [0.5, 2.0]}
        return fake_line(tau=tau, trials=trials, config=config, **options)

    used = with_steps(fake_line(), 9)
    table = choices_table([used, search(0.5), search(0.5, n=7), search(2.0)], "mnist")
    (row,) = table.rows
    assert dict(zip(table.header, row, strict=True)) == {
        "study": ["sort"],
        "method": ["Deterministic NeuralSort"],
        "n": ["5"],
        "recipe": ["fast"],
        "chosen": ["0.5"],
        "steps": ["1"],
        "tried": ["0.5: 0.7", "2: 0.2"],
    }


def test_cells_of_the_tuned_recipe_say_what_others_found():
    lines = [replace(line, recipe="tuned") for line in seeds("neuralsort", 0.8)]
    table = list_table(SORT, lines, "mnist", whole=False)
    assert table.rows[0][1][-1] == "Prillo and Eisenschlos (2020): 0.797 (0.911)"
    assert "Prillo" not in str(list_table(SORT, seeds("neuralsort", 0.8), "mnist").rows)


def test_rankings_of_other_plans_are_not_compared():
    def folds(method: str, value: float, *, steps: int = 275, lr: float = 2e-3) -> list[Line]:
        plan = {"steps": max(steps, 1), "batch": 32, "lr": lr}
        one = fake_line(method, study="rank", data="mq2008", steps=steps, config={"plan": plan})
        metrics = dict.fromkeys(("ndcg@5", "ndcg@10", "mrr"), value)
        return [replace(one, sizes={"fold": fold}, metrics=metrics) for fold in (1, 2)]

    usual = folds("ranknet_loss", 0.5) + folds("neural_ndcg", 0.4)
    trees = folds("lambdamart", 0.45, steps=0)
    others = folds("neural_ndcg", 0.9, steps=5) + folds("lambda_loss", 0.9, lr=1.0)
    for lines in ([*usual, *trees, *others], [*others, *trees, *usual]):
        rows = tables.rank_table(lines).rows
        assert [row[0][0] for row in rows] == ["ranknet_loss", "lambdamart", "neural_ndcg"]
        assert "0.900" not in str(rows)


def test_what_is_not_trained_is_compared_on_the_same_test():
    trained = fake_line()
    constant = replace(fake_line("constant", exact=0.2), steps=0)
    few = replace(constant, sizes=constant.sizes | {"test_lists": 7})
    double = replace(constant, precision="64-true")
    (budget,) = budgets([trained])
    assert within([trained, constant, few, double], budget) == [trained, constant]


def test_rankings_have_an_interval_over_folds():
    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    one = fake_line("ranknet_loss", study="rank")
    lines = [
        replace(one, sizes={"fold": fold}, metrics={"ndcg@5": x, "ndcg@10": x, "mrr": x})
        for fold, x in enumerate(values, start=1)
    ]
    (row,) = tables.rank_table(lines).rows
    half = 2.776445 * np.std(values, ddof=1) / 5**0.5
    assert row[0] == ["ranknet_loss", "5 folds"]
    assert row[1] == ["0.300", f"95 % over folds: {0.3 - half:.3f} to {0.3 + half:.3f}"]
    other = with_plan(replace(lines[0], metrics=dict.fromkeys(lines[0].metrics, 0.9)), lr=1.0)
    later = replace(lines[0], seed=1, metrics=dict.fromkeys(lines[0].metrics, 0.9))
    assert tables.rank_table([*lines, other, later]).rows == [row]


def test_numbers_of_other_sizes_have_rows_and_columns_of_their_own():
    lines = [fake_line(), fake_line(exact=0.5, places=5), fake_line(exact=0.7, n=4)]
    table = list_table(SORT, chosen(lines), "mnist")
    assert table.header == ["method", *(f"n = {n}" for n in (3, 4, 5, 7, 9, 15))]
    rows = {tuple(row[0]): row for row in table.rows}
    usual = rows[("Deterministic NeuralSort",)]
    assert (usual[2][0], usual[2][-1]) == ("0.700 (0.950)", "paper: not given")
    assert usual[3][0] == "0.900 (0.950)"
    other = rows["Deterministic NeuralSort", "numbers of 5 digits"]
    assert other[3][0] == "0.500 (0.950)"
    assert other[1] == ["missing"]


def test_runs_trained_at_the_length_come_first_and_others_say_so():
    other = {"config": fake_line().config | {"train_n": 15}}
    both = [fake_line(exact=0.8), fake_line(exact=0.9, **other)]
    for lines, expected in ((both, "0.800 (0.950)"), (both[1:], "0.900 (0.950)")):
        table = list_table(SORT, chosen(lines), "mnist")
        (row,) = [row for row in table.rows if row[0][0] == "Deterministic NeuralSort"]
        assert row[2][0] == expected
        assert ("trained at n = 15" in row[2]) == (len(lines) == 1)


def test_limited_runs_say_so():
    table = tables.runs_table([fake_line()])
    assert "limited" in table.rows[0][table.header.index("steps")][0]


def test_report_is_rendered_from_lines_alone(tmp_path):
    results = tmp_path / "lines"
    for study, kind, methods in (
        (SortStudy(), SortConfig, ("neuralsort", "vanilla")),
        (MedianStudy(), MedianConfig, ("neuralsort", "constant")),
    ):
        for method in methods:
            folder = tmp_path / f"{study.name}-{method}"
            run(study, small(kind, tmp_path, method=method, run=folder, results=results))
    # Lines of other studies stand in the same folder, and have other keys.
    (results / "others.jsonl").write_text('{"study": "gradients", "method": "rebar", "n": 5}\n')
    page = report.write_report(results, tmp_path / "report")
    text, markdown = page.read_text(), (page.parent / "report.md").read_text()
    for name in ("Deterministic NeuralSort", "Vanilla", "Constant", "Recipes"):
        assert name in text
        assert name in markdown
    assert "Summary" not in text  # there is nothing of MNIST to sum up
    pictures = sorted(path.name for path in (page.parent / "figures").iterdir())
    assert len(pictures) == 5
    assert all(f"figures/{one}" in text and f"figures/{one}" in markdown for one in pictures)


def test_report_without_lines_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="no lines of results"):
        report.write_report(tmp_path, tmp_path / "report")


def test_a_new_study_is_in_the_report_without_another_line(tmp_path, monkeypatch):
    lines = [
        replace(line, study="weigh", sizes={"items": 3}, metrics={"error": 0.25 * (1 + line.seed)})
        for line in seeds("neuralsort", 0.5, 0.5)
    ]
    for line in lines:
        record.append(tmp_path / "weigh.jsonl", line)
    monkeypatch.setattr(report, "STUDIES", {"weigh": None})
    text = report.write_report(tmp_path, tmp_path / "report").with_name("report.md").read_text()
    assert "## Weigh" in text
    assert "mnist, fast, items = 3" in text
    assert "| Deterministic NeuralSort | 0.375<br>2 seeds, range: 0.25 to 0.5 |" in text


def test_tables_of_the_docs_say_how_many_seeds_a_number_has():
    lines = [
        *(replace(fake_line(exact=x), seed=i) for i, x in enumerate((0.90, 0.91, 0.92))),
        *(replace(fake_line("vanilla", exact=x), seed=i) for i, x in enumerate((0.5, 0.7))),
        fake_line("reinforce", exact=0.8),
    ]
    half = stats.t.ppf(0.975, 2) * 0.01 / 3**0.5
    rows = {row.split("|")[1].strip(): row.split("|")[3].strip() for row in cells_of(lines)}
    assert rows["Deterministic NeuralSort"] == f"0.910 ± {half:.3f} (0.837)"
    assert rows["Vanilla"] == "0.600 in two seeds (0.093)"
    assert rows["REINFORCE"] == "0.800 in one seed"  # the paper has none
    assert all(row.split("|")[2].strip() == "–" for row in cells_of(lines))  # n = 3


def cells_of(lines: list[Line]) -> list[str]:
    return pages.studied(SORT, lines).splitlines()[2:]
