"""The dashboard *numerics*: what the numbers decided, and how close it was."""

from panel import (
    PROCESS,
    PROCESS_NAME,
    Panel,
    Query,
    heatmap,
    mean,
    quantile,
    rate,
    selector,
    share,
    site,
    value,
    world,
)

TITLE = "simgrad / numerics"
UID = "simgrad-numerics"
DESCRIPTION = (
    "Stopping tests, events, non-finite values, rounding losses and gradients of simgrad's worlds."
)
VARIABLES: tuple[str, ...] = ("world", "site")

NEAR = "simgrad_termination_near_boundary_total"
CHECKS = "simgrad_termination_checks_total"
STOPS = "simgrad_terminations_total"
ITERATIONS = "simgrad_solver_iterations"
MARGIN = "simgrad_termination_margin_ulps"

TERMINATION = (
    heatmap(
        "Margins at the stop",
        "Distance of the tested value from its threshold when a loop stopped, in ulps of the comparison's format. "
        "Weight in the lowest rows means that rounding decides when loops stop.",
        "short",
        MARGIN,
        site(),
    ),
    Panel(
        "Near-boundary ratio, per site",
        "Share of the stopping tests whose margin is within the band: a different order of summation could have "
        "decided them otherwise.",
        "percentunit",
        (
            Query(
                share(rate(NEAR, "world, site", site()), rate(CHECKS, "world, site", site())),
                "{{world}}/{{site}}",
            ),
        ),
        threshold=0.05,
    ),
    Panel(
        "Near-boundary tests, by decision",
        "Tests within the band per second: stopped just below the threshold, or continued just above it.",
        "cps",
        (Query(rate(NEAR, "side", site()), "{{side}}"),),
        stacked=True,
    ),
    Panel(
        "Why loops stopped",
        "Runs of loops per second by reason: converged, max_iter (the cap), nonfinite, not_entered, counter.",
        "cps",
        (Query(rate(STOPS, "reason", site()), "{{reason}}"),),
        stacked=True,
    ),
    heatmap(
        "Iterations",
        "Iterations of each run of a loop.",
        "short",
        ITERATIONS,
        site(),
    ),
    Panel(
        "Mean iterations, per site",
        "A jump without a change of load is a change of the numerical program.",
        "short",
        (Query(mean(ITERATIONS, "world, site", site()), "{{world}}/{{site}}"),),
    ),
    Panel(
        "Stopped at the cap, per site",
        "Share of the runs that stopped at max_iter without converging.",
        "percentunit",
        (
            Query(
                share(
                    rate(STOPS, "world, site", site('reason="max_iter"')),
                    rate(STOPS, "world, site", site()),
                ),
                "{{world}}/{{site}}",
            ),
        ),
        threshold=0.1,
    ),
    Panel(
        "Median margin, per site",
        "Half of the stops are closer to the threshold than this, in ulps.",
        "short",
        (Query(quantile(0.5, MARGIN, "world, site", site()), "{{world}}/{{site}}"),),
    ),
    Panel(
        "Band in force",
        "Margins within so many ulps count as near the boundary (--near_band_ulps).",
        "short",
        (Query(f"max(simgrad_termination_near_band_ulps{selector()})", "ulps"),),
        "stat",
        4,
    ),
    Panel(
        "Stopping tests",
        "Tests per second, all sites chosen.",
        "cps",
        (Query(f"sum(rate({CHECKS}{selector(site())}[$__rate_interval]))", "tests"),),
        "stat",
        4,
    ),
)

EVENTS = (
    Panel(
        "Events",
        "Elements for which an event held, per second.",
        "cps",
        (Query(rate("simgrad_events_total", "world, site", world()), "{{world}}/{{site}}"),),
    ),
    Panel(
        "Event changes",
        "Elements for which an event differed from its last evaluation, per second: contacts made and broken.",
        "cps",
        (Query(rate("simgrad_event_changes_total", "world, site", world()), "{{world}}/{{site}}"),),
    ),
)

COMPARISONS = (
    Panel(
        "Compared instances",
        "Instances whose path was compared with that of another run by Compare, per second: the same, or another.",
        "cps",
        (Query(rate("simgrad_path_comparisons_total", "result"), "{{result}}"),),
    ),
    Panel(
        "Decisions that flip",
        "Decisions per second that two runs of Compare took otherwise, by site: tests at the edge of a policy.",
        "cps",
        (Query(rate("simgrad_path_flips_total", "world, site", world()), "{{world}}/{{site}}"),),
    ),
)

NONFINITE = (
    Panel(
        "Non-finite values, by phase",
        "NaN and Inf seen per second: in inputs, in the forward pass, in the adjoint.",
        "cps",
        (Query(rate("simgrad_nonfinite_values_total", "phase, kind"), "{{phase}} {{kind}}"),),
    ),
    Panel(
        "Non-finite values, by role",
        "NaN and Inf seen per second, by what the value was for.",
        "cps",
        (Query(rate("simgrad_nonfinite_values_total", "role"), "{{role}}"),),
    ),
    Panel(
        "Non-finite instances",
        "Instances that went non-finite per second, by the phase where it began and by what was done.",
        "cps",
        (
            Query(
                rate("simgrad_nonfinite_instances_total", "phase, action"), "{{phase}} {{action}}"
            ),
        ),
    ),
    heatmap(
        "First non-finite step",
        "At which step instances went non-finite in the forward pass: early points to inputs, late to growth.",
        "short",
        "simgrad_nonfinite_first_step",
        'phase="forward"',
    ),
    Panel(
        "Underflows, by role",
        "Casts and state stores per second that became zero or subnormal: gradients lose their small parts here.",
        "cps",
        (Query(rate("simgrad_underflows_total", "role"), "{{role}}"),),
    ),
    Panel(
        "Overflows, by role",
        "Casts and state stores per second that became infinite or the largest value.",
        "cps",
        (Query(rate("simgrad_overflows_total", "role"), "{{role}}"),),
    ),
    Panel(
        "Absorbed share, by role",
        "Share of the additions into states that did nothing, at sampled steps: the state stands still although its "
        "derivative says that it moves. Near one, the role's format is too narrow for the steps of some world.",
        "percentunit",
        (
            Query(
                share(
                    rate("simgrad_absorbed_total", "role"), rate("simgrad_additions_total", "role")
                ),
                "{{role}}",
            ),
        ),
    ),
    Panel(
        "Lost inside operations, by role",
        "Underflows and overflows by results of operations, above 1 where sums have several inside; and the share of "
        "additions that were absorbed. Of the instances that requests with arithmetic_instances counted: without such "
        "requests there is no line.",
        "percentunit",
        (
            Query(
                share(
                    rate("simgrad_arithmetic_losses_total", "role", 'loss!="absorbed"'),
                    rate("simgrad_arithmetic_results_total", "role"),
                ),
                "{{role}} beyond its range",
            ),
            Query(
                share(
                    rate("simgrad_arithmetic_losses_total", "role", 'loss="absorbed"'),
                    rate("simgrad_arithmetic_additions_total", "role"),
                ),
                "{{role}} absorbed",
            ),
        ),
    ),
)

GRADIENTS = (
    Panel(
        "Connected share",
        "Share of the gradients whose input the executed path used. Below one, a zero is no statement about the world.",
        "percentunit",
        (
            Query(
                "1 - "
                + share(
                    rate("simgrad_gradient_disconnected_total", "world", world()),
                    rate("simgrad_gradients_total", "world", world()),
                ),
                "{{world}}",
            ),
        ),
    ),
    Panel(
        "Zero gradients",
        "Share of the gradients that are zero in every element, connected or not.",
        "percentunit",
        (
            Query(
                share(
                    rate("simgrad_gradient_zero_total", "world", world()),
                    rate("simgrad_gradients_total", "world", world()),
                ),
                "{{world}}",
            ),
        ),
    ),
    heatmap(
        "Gradient norms",
        "Euclidean norms of returned gradients, finite ones only, in decades.",
        "short",
        "simgrad_gradient_norm",
        world(),
    ),
    Panel(
        "Median gradient norm",
        "Half of the returned gradients are smaller than this.",
        "short",
        (Query(quantile(0.5, "simgrad_gradient_norm", "world", world()), "{{world}}"),),
    ),
    Panel(
        "Loss scale",
        "Lowest loss scale in force. 1: none; below 1 it has collapsed.",
        "short",
        (Query(value("simgrad_loss_scale", PROCESS, how="min"), PROCESS_NAME),),
    ),
    Panel(
        "Loss scale adjustments",
        "Gradients behind which a dynamic loss scale grew or fell. Many falls: gradients are skipped.",
        "ops",
        (Query(rate("simgrad_loss_scale_adjustments_total", "direction"), "{{direction}}"),),
    ),
)

ROWS = (
    ("Stopping tests", TERMINATION),
    ("Events", EVENTS),
    ("Comparisons", COMPARISONS),
    ("Non-finite values and rounding losses", NONFINITE),
    ("Gradients", GRADIENTS),
)
