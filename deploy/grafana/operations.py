"""The dashboard *operations*: is the service well, and if not, what is short?"""

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
    value,
)

TITLE = "simgrad / operations"
UID = "simgrad-operations"
DESCRIPTION = "Health, requests, queue, phases, device and process of simgrad servers."
VARIABLES: tuple[str, ...] = ()

FAULTS = 'grpc_code=~"Internal|Unknown|DataLoss|Unavailable|ResourceExhausted"'
HANDLED = "grpc_server_handled_total"
WAIT = "simgrad_queue_wait_seconds"
REJECTED = "simgrad_queue_rejected_total"
IN_TIME = 'le=~"10|10.0"'
NO_ROOM = 'reason=~"full|memory|expired"'
NO_FAULTS = 'reason=~"caller|too_large|too_long|slow_reader"'


def quantiles(histogram: str, by: str) -> tuple[Query, ...]:
    return tuple(
        Query(
            quantile(q, histogram, by),
            f"p{round(q * 100)} {{{{{by}}}}}" if by else f"p{round(q * 100)}",
        )
        for q in (0.5, 0.95, 0.99)
    )


HEALTH = (
    Panel(
        "Ready servers",
        "Servers that take requests. 0 while draining or after a fatal device error.",
        "short",
        (Query(f"sum(simgrad_ready{selector()})", "ready"),),
        "stat",
        4,
    ),
    Panel(
        "Firing alerts",
        "Alerts of simgrad that fire now; empty when all is well. Each has a section in docs/operations.md.",
        "short",
        (
            Query(
                value("ALERTS", "alertname", 'alertname=~"Simgrad.+", alertstate="firing"'),
                "{{alertname}}",
            ),
        ),
        "stat",
        8,
    ),
    Panel(
        "Uptime",
        "Time since the process started; a restart shows as a drop.",
        "s",
        (Query(f"time() - process_start_time_seconds{selector()}", PROCESS_NAME),),
        "stat",
        4,
    ),
    Panel(
        "Version",
        "What runs: version, revision, and the CUDA version it was built with (none: a CPU build).",
        "short",
        (
            Query(
                value("simgrad_build_info", "version, revision, cuda"),
                "{{version}} {{revision}} cuda {{cuda}}",
            ),
        ),
        "stat",
        4,
        names=True,
    ),
    Panel(
        "Device",
        "Where it runs. A CUDA build that runs on the CPU raises SimgradCpuFallback.",
        "short",
        (Query(value("simgrad_device_info", "kind, name"), "{{kind}}: {{name}}"),),
        "stat",
        4,
        names=True,
    ),
)

REQUESTS = (
    Panel(
        "Requests started",
        "RPCs that arrived, per second.",
        "reqps",
        (Query(rate("grpc_server_started_total", "grpc_method"), "{{grpc_method}}"),),
    ),
    Panel(
        "Requests ended, by code",
        "RPCs that ended, per second, by gRPC status code. A non-finite instance is a result, not an error.",
        "reqps",
        (Query(rate(HANDLED, "grpc_code"), "{{grpc_code}}"),),
        stacked=True,
    ),
    Panel(
        "Fault ratio",
        "Share of RPCs that failed for reasons that are not in the request: Internal, Unavailable, ResourceExhausted; without callers at their own limits, requests that never fit and slow readers.",
        "percentunit",
        (
            Query(
                share(
                    f"({rate(HANDLED, PROCESS, FAULTS)} - {rate(REJECTED, PROCESS, NO_FAULTS)})",
                    rate(HANDLED, PROCESS),
                ),
                PROCESS_NAME,
            ),
        ),
        threshold=0.05,
    ),
    Panel(
        "Handling time",
        "Time from the arrival of an RPC to its end.",
        "s",
        quantiles("grpc_server_handling_seconds", "grpc_method"),
    ),
    heatmap(
        "Handling time of streams",
        "Rollout and Gradient, from arrival to end: how the times are spread.",
        "s",
        "grpc_server_handling_seconds",
        'grpc_type="server_stream"',
    ),
    Panel(
        "Time to the first message",
        "Time from the arrival of a streaming RPC to its header: decoding, compiling and waiting.",
        "s",
        quantiles("simgrad_rpc_time_to_first_message_seconds", "grpc_method"),
    ),
    Panel(
        "In flight",
        "RPCs being handled, queued ones included; not those whose request still comes.",
        "short",
        (Query(value("simgrad_rpc_in_flight", "grpc_method"), "{{grpc_method}}"),),
    ),
    Panel(
        "Lost work",
        "RPCs cancelled or expired, per second, by where the work was lost.",
        "reqps",
        (
            Query(rate("simgrad_rpc_cancelled_total", "phase"), "cancelled in {{phase}}"),
            Query(rate("simgrad_rpc_deadline_exceeded_total", "phase"), "expired in {{phase}}"),
        ),
    ),
    Panel(
        "Dropped stream messages",
        "Parts of answers that were not sent, per second: slow_client, the caller was too slow for long and its call failed; "
        "sampled, progress that newer progress replaced.",
        "cps",
        (Query(rate("simgrad_stream_dropped_messages_total", "reason"), "{{reason}}"),),
    ),
)

QUEUE = (
    Panel(
        "Queue",
        "Requests that wait, and how many may: the signal to scale on.",
        "short",
        (
            Query(value("simgrad_queue_requests", PROCESS), f"waiting {PROCESS_NAME}"),
            Query(value("simgrad_queue_capacity_requests", PROCESS), f"capacity {PROCESS_NAME}"),
        ),
    ),
    Panel(
        "Queue wait",
        "Time that requests waited before a worker took them.",
        "s",
        quantiles("simgrad_queue_wait_seconds", ""),
    ),
    Panel(
        "Late or refused",
        "Share of the requests that waited more than ten seconds, expired while they waited or were refused for lack of room; the objective is 1 %.",
        "percentunit",
        (
            Query(
                f"1 - {rate(f'{WAIT}_bucket', 'job', IN_TIME)} / "
                f"(({rate(f'{WAIT}_count', 'job')} + {rate(REJECTED, 'job', NO_ROOM)}) > 0)",
                "late or refused",
            ),
        ),
        threshold=0.01,
    ),
    Panel(
        "Rejected",
        "Requests not admitted, per second, by reason: full, the queue; memory, the budget; deadline, it passed before the request could wait; expired, it passed while the request waited; draining; caller, its own limit; too_large, it never fits the memory; too_long, it has too many bytes; slow_reader, the answer was given up.",
        "reqps",
        (Query(rate("simgrad_queue_rejected_total", "reason"), "{{reason}}"),),
    ),
    Panel(
        "Time per phase",
        "Seconds of work per second in each phase of requests, stacked: where time goes.",
        "s",
        (Query(rate("simgrad_phase_duration_seconds_sum", "phase"), "{{phase}}"),),
        stacked=True,
    ),
    Panel(
        "Phase duration, p95",
        "The slowest twentieth of requests: time in each phase.",
        "s",
        (Query(quantile(0.95, "simgrad_phase_duration_seconds", "phase"), "{{phase}}"),),
    ),
    Panel(
        "Program cache",
        "Look-ups of lowered programs per second; a miss compiles, failed means that the program was refused.",
        "ops",
        (Query(rate("simgrad_program_cache_total", "result"), "{{result}}"),),
    ),
    Panel(
        "Rollouts, by end",
        "Admitted requests per second, by mode and outcome.",
        "reqps",
        (Query(rate("simgrad_rollouts_total", "mode, outcome"), "{{mode}} {{outcome}}"),),
        stacked=True,
    ),
    Panel(
        "Instances",
        "Instances of admitted requests per second, by world.",
        "cps",
        (Query(rate("simgrad_instances_total", "world, mode"), "{{world}} {{mode}}"),),
    ),
    heatmap(
        "Instances per request",
        "Sizes of the batches that were sent for the forward pass.",
        "short",
        "simgrad_batch_instances",
        'direction="forward"',
    ),
    Panel(
        "Instances per gradient request",
        "Mean size of the batches that were differentiated, beside that of all.",
        "short",
        (Query(mean("simgrad_batch_instances", "direction"), "{{direction}}"),),
    ),
    Panel(
        "Steps",
        "Instance-steps per second, by direction.",
        "ops",
        (Query(rate("simgrad_steps_total", "direction"), "{{direction}}"),),
    ),
    Panel(
        "Recomputation",
        "Recomputed steps over forward steps: what checkpoints within the memory budget cost.",
        "percentunit",
        (
            Query(
                share(
                    rate("simgrad_steps_total", PROCESS, 'direction="recompute"'),
                    rate("simgrad_steps_total", PROCESS, 'direction="forward"'),
                ),
                PROCESS_NAME,
            ),
        ),
    ),
)

DEVICE = (
    Panel(
        "GPU busy",
        "Share of time in which kernels ran or stood in line, added up over requests: above 100 % where several run at once.",
        "percentunit",
        (
            Query(
                rate("simgrad_gpu_busy_seconds_total", f"{PROCESS}, gpu"), f"{PROCESS_NAME} GPU {{{{gpu}}}}"
            ),
        ),
    ),
    Panel(
        "GPU memory",
        "Device memory that work of simgrad holds, and that there is in all. What the driver and other processes hold is not among the used.",
        "bytes",
        (
            Query(
                value("simgrad_gpu_memory_used_bytes", f"{PROCESS}, gpu"),
                f"used {PROCESS_NAME} GPU {{{{gpu}}}}",
            ),
            Query(
                value("simgrad_gpu_memory_total_bytes", f"{PROCESS}, gpu"),
                f"total {PROCESS_NAME} GPU {{{{gpu}}}}",
            ),
        ),
    ),
    Panel(
        "CUDA errors",
        "Errors per second. A sticky one makes the server unready; Kubernetes then restarts it.",
        "cps",
        (Query(rate("simgrad_cuda_errors_total", "kind"), "{{kind}}"),),
    ),
    Panel(
        "GPUs",
        "Which GPUs are there.",
        "short",
        (Query(value("simgrad_gpu_info", "gpu, name, uuid"), "{{gpu}}: {{name}} {{uuid}}"),),
        "stat",
        names=True,
    ),
)

PROCESS_ROW = (
    Panel(
        "CPU",
        "Cores in use.",
        "short",
        (Query(rate("process_cpu_seconds_total", PROCESS), PROCESS_NAME),),
        width=6,
    ),
    Panel(
        "Memory",
        "Resident and virtual memory.",
        "bytes",
        (
            Query(value("process_resident_memory_bytes", PROCESS), f"resident {PROCESS_NAME}"),
            Query(value("process_virtual_memory_bytes", PROCESS), f"virtual {PROCESS_NAME}"),
        ),
        width=6,
    ),
    Panel(
        "File descriptors",
        "Open file descriptors over their limit.",
        "percentunit",
        (
            Query(
                share(value("process_open_fds", PROCESS), value("process_max_fds", PROCESS)),
                PROCESS_NAME,
            ),
        ),
        width=6,
    ),
    Panel(
        "Certificate expires in",
        "Time until the TLS certificate that is presented expires; empty without TLS.",
        "s",
        (
            Query(
                f"(simgrad_tls_certificate_expiry_timestamp_seconds{selector()} > 0) - time()",
                PROCESS_NAME,
            ),
        ),
        "stat",
        6,
    ),
    Panel(
        "Connections",
        "Open connections; a connection takes two file descriptors.",
        "short",
        (Query(value("simgrad_connections", PROCESS), PROCESS_NAME),),
    ),
    Panel(
        "Connections rejected",
        "Connections refused or cut per second: too many in all or of one peer, no handshake in time, "
        "calls cancelled in numbers, no file descriptors.",
        "cps",
        (Query(rate("simgrad_connections_rejected_total", "reason"), "{{reason}}"),),
    ),
    Panel(
        "Failed reloads",
        "Changed files of TLS or tokens that could not be used, per second; those known before stay in use.",
        "cps",
        (Query(rate("simgrad_reload_failures_total", "what"), "{{what}}"),),
    ),
    Panel(
        "Spans of traces",
        "Spans per second, where --otlp_endpoint is set: sent, dropped as the collector was away or too slow, refused by it.",
        "cps",
        (Query(rate("simgrad_trace_spans_total", "result"), "{{result}}"),),
    ),
)

LOAD = (
    Panel(
        "Workers",
        "Workers that run a request, and how many there are, by lane. Work that waits for its reader has none.",
        "short",
        (
            Query(value("simgrad_workers_busy", "lane"), "{{lane}} busy"),
            Query(value("simgrad_workers", "lane"), "{{lane}}"),
        ),
    ),
    Panel(
        "Memory, reserved",
        "Memory set aside, by use, and the limit that all uses share. Caches give theirs up where work needs it.",
        "bytes",
        (
            Query(value("simgrad_memory_reserved_bytes", "use"), "{{use}}"),
            Query(f"sum(simgrad_memory_limit_bytes{selector()})", "limit"),
        ),
    ),
    Panel(
        "Caches",
        "Bytes that the caches of verified worlds, of lowered programs, of their plans and of their machine code hold, and contents that callers uploaded, measured.",
        "bytes",
        (Query(value("simgrad_cache_bytes", "cache"), "{{cache}}"),),
    ),
    Panel(
        "Caches, entries",
        "Worlds, programs, plans, kernels and uploaded contents that are kept.",
        "short",
        (Query(value("simgrad_cache_entries", "cache"), "{{cache}}"),),
    ),
    Panel(
        "Kept rollouts",
        "Bytes of the rollouts that callers keep for Vjp, and what they may take (--kept_run_bytes).",
        "bytes",
        (
            Query(value("simgrad_tape_bytes", "tier"), "{{tier}}"),
            Query(value("simgrad_tape_limit_bytes", "tier"), "{{tier}}, limit"),
        ),
    ),
    Panel(
        "Kept rollouts that went",
        "Per second. ttl: nobody asked any more. limit: --kept_run_bytes is too small for what callers keep; released: the memory is. One that is still wanted costs its caller a simulation.",
        "cps",
        (Query(rate("simgrad_tape_evictions_total", "reason"), "{{reason}}"),),
    ),
    Panel(
        "Compilations of kernels",
        "Programs are compiled quickly when they are first met, and well for later requests. A rate that stays up means that programs do not come back, or that the caches are too small.",
        "cps",
        (Query(rate("simgrad_kernel_compiles_total", "quality"), "{{quality}}"),),
    ),
    Panel(
        "Time to compile a kernel",
        "How long it took: quick ones keep a first request waiting, best ones do not.",
        "s",
        (Query(quantile(0.95, "simgrad_kernel_compile_seconds", "quality"), "{{quality}}"),),
    ),
    Panel(
        "Requests, by caller",
        "Rollouts and gradients per second of the callers that the operator wrote down; all others are one.",
        "reqps",
        (Query(rate("simgrad_caller_requests_total", "caller"), "{{caller}}"),),
    ),
    Panel(
        "Instance-steps, by caller",
        "Instance-steps per second that were admitted.",
        "cps",
        (Query(rate("simgrad_caller_instance_steps_total", "caller"), "{{caller}}"),),
    ),
    Panel(
        "Refused, by caller",
        "Requests per second that were refused; requests, rate and share are the caller's own limits.",
        "reqps",
        (Query(rate("simgrad_caller_rejected_total", "caller, reason"), "{{caller}} {{reason}}"),),
    ),
)

ROWS = (
    ("Health", HEALTH),
    ("Requests", REQUESTS),
    ("Queue and work", QUEUE),
    ("Load and callers", LOAD),
    ("GPU", DEVICE),
    ("Process", PROCESS_ROW),
)
