"""The arrows of the tree: who may include whom (docs/architecture.md)."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# Folder (longest prefix wins) -> what its quoted or library includes may start with. Standard
# headers (no slash, no ".h") and C headers listed in SYSTEM are free everywhere.
ALLOWED = {
    "precision": ("precision/",),
    # An entry is written with the program's types, and the passes read the entries.
    "sim/op": ("sim/op/", "sim/program/", "sim/work_meter.h", "precision/", "absl/"),
    "sim/program": ("sim/program/", "sim/op/", "precision/", "absl/", "openssl/"),
    "sim/worlds": ("sim/worlds/", "sim/program/", "precision/", "absl/"),
    "sim/diagnostics": ("sim/diagnostics/", "sim/program/", "sim/op/arithmetic_counter.h", "precision/", "absl/"),
    "sim/backend/reference": ("sim/backend/reference/", "sim/backend/", "sim/diagnostics/",
                              "sim/op/", "sim/program/", "sim/tensor.h", "sim/work_meter.h",
                              "precision/", "absl/"),
    "sim/plan": ("sim/plan/", "sim/op/", "sim/program/", "sim/diagnostics/", "sim/text.h", "sim/work_meter.h",
                 "precision/", "absl/"),
    "sim/backend/compiled": ("sim/backend/compiled/", "sim/backend/", "sim/plan/", "sim/diagnostics/", "sim/program/",
                             "sim/tensor.h", "sim/text.h", "sim/work_meter.h", "precision/", "absl/", "llvm/"),
    "sim/backend/cuda/device": ("sim/backend/cuda/device/", "sim/backend/cuda/kernel_abi.h", "sim/backend/columns.h",
                                "precision/"),
    "sim/backend/cuda": ("sim/backend/cuda/", "sim/backend/", "sim/diagnostics/", "sim/op/", "sim/plan/",
                         "sim/program/", "sim/tensor.h", "sim/text.h", "sim/work_meter.h", "precision/", "absl/",
                         "openssl/", "cuda.h", "nvrtc.h"),
    "sim/backend/no_cuda": ("sim/backend/cuda/", "absl/"),
    "sim/backend/no_compiled": ("sim/backend/", "absl/"),
    "sim/backend": ("sim/backend/", "sim/diagnostics/", "sim/program/", "sim/tensor.h",
                    "sim/work_meter.h", "precision/", "absl/", "openssl/"),
    "sim/engine": ("sim/", "precision/", "absl/"),
    "sim": ("sim/", "precision/", "absl/"),
    "server/scheduling": ("server/scheduling/", "sim/", "precision/", "absl/"),
    "server/config": ("server/config/", "absl/"),
    "server/validation": ("server/validation/", "simgrad/v1/", "google/protobuf/",
                          "sim/program/field_error.h", "sim/work_meter.h", "absl/"),
    "server/metrics": ("server/metrics/", "server/config/", "server/descriptor.h", "server/listening_sockets.h", "sim/", "precision/", "prometheus/",
                       "absl/"),
    "server/tracing": ("server/tracing/", "grpcpp/", "absl/"),
    "server/conversion": ("server/conversion/", "server/validation/", "server/config/",
                          "simgrad/v1/", "google/protobuf/", "sim/", "precision/", "absl/"),
    "server/service": ("server/", "simgrad/v1/", "google/protobuf/", "grpcpp/", "grpc/", "openssl/",
                       "sim/", "precision/", "absl/"),
    "server": ("server/", "simgrad/v1/", "google/protobuf/", "grpcpp/", "grpc/", "sim/",
               "precision/", "absl/"),
}
SYSTEM = {"math.h", "dlfcn.h", "immintrin.h", "xmmintrin.h", "cpuid.h", "unistd.h", "signal.h", "sys/resource.h",
          "pthread.h", "sys/types.h", "sys/socket.h", "netinet/in.h", "arpa/inet.h",
          "netdb.h", "fcntl.h", "sys/stat.h", "poll.h", "sys/eventfd.h",
          "netinet/tcp.h", "linux/tcp.h", "sys/epoll.h", "sys/ioctl.h", "malloc.h", "sys/random.h"}
# The simulation's types and the wire's meet in one place.
MEETING_PLACE = "server/conversion"
# Executors know nothing of each other. `compiled` leaves little work to the reference.
FORBIDDEN = {"sim/backend/compiled": ("sim/backend/cuda/",),
             "sim/backend/cuda": ("sim/backend/reference/", "sim/backend/compiled/"),
             "sim/backend/reference": ("sim/backend/compiled/", "sim/backend/cuda/"),
             # LLVM is for what writes instructions and compiles them; what compiles them knows no plan.
             "sim/backend/compiled/group": ("llvm/",),
             "sim/backend/compiled/analysis": ("llvm/",),
             "sim/backend/compiled/machine": ("sim/plan/",),
             "sim/backend/compiled/run": ("llvm/",),
             "sim/backend/cuda/text": ("cuda.h", "nvrtc.h"),
             "sim/backend/cuda/run": ("cuda.h", "nvrtc.h")}
# Kernels and machine code count by it alike.
COMMON = ("sim/backend/cuda/device/buckets.h",)
# Sub-folders, from below, each with those that it may use; "": the files that stand beside the sub-folders.
SUB_FOLDERS = {
    "sim/backend/compiled": {
        "scalars": (),
        "group": (),
        "analysis": ("group",),
        "writer": ("scalars", "group", "analysis"),
        "machine": (),
        "kernels": ("scalars", "group", "writer", "machine"),
        "run": ("group", "kernels"),
        "": ("kernels", "run"),
    },
    "sim/backend/cuda": {
        "": (),
        "device": ("",),
        "text": ("", "device"),
        "compiler": ("",),
        "driver": ("", "compiler"),
        "run": ("",),
    },
}


def sources():
    for folder in ("precision", "sim", "server"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".inc"):
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def rule_for(name):
    matches = [folder for folder in ALLOWED if name.startswith(folder + "/")]
    return max(matches, key=len)


def sub_folder(whole, name):
    """The sub-folder of `whole` that a file below it lies in, or ""."""
    first, slash, _ = name.removeprefix(whole + "/").partition("/")
    return first if slash else ""


def crosses(name, target):
    """Whether an include goes from one sub-folder to another that it may not use."""
    for whole, may_use in SUB_FOLDERS.items():
        if name.startswith(whole + "/") and target.startswith(whole + "/"):
            here, there = sub_folder(whole, name), sub_folder(whole, target)
            return here != there and there not in may_use[here]
    return False


def violations(name, text):
    """Every include of `text`, standing in file `name`, that points where it must not."""
    found = []
    rule = rule_for(name)
    for _, target in INCLUDE.findall(text):
        standard = "/" not in target and "." not in target
        if standard or target in SYSTEM:
            continue
        if not target.startswith(ALLOWED[rule]) or crosses(name, target):
            found.append(f"{name} includes {target}")
        for folder, forbidden in FORBIDDEN.items():
            if name.startswith(folder + "/") and target.startswith(forbidden) and target not in COMMON:
                found.append(f"{name} includes {target}")
    return found


def test_no_include_points_up():
    problems = [line for name, text in sources() for line in violations(name, text)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name, include", [
    ("precision/ulp.h", "sim/tensor.h"),
    ("precision/policy.cc", "absl/strings/str_cat.h"),
    ("sim/program/lower.cc", "sim/engine.h"),
    ("sim/engine.cc", "simgrad/v1/simgrad.pb.h"),
    ("sim/backend/cuda/x.cc", "sim/backend/reference/layout.h"),
    ("sim/backend/compiled/x.cc", "sim/backend/cuda/generate.h"),
    ("sim/backend/compiled/writer/x.cc", "sim/backend/compiled/kernels/kernel.h"),
    ("sim/backend/compiled/run/x.cc", "sim/backend/compiled/compiled_executor.h"),
    ("sim/backend/compiled/run/x.cc", "llvm/IR/Module.h"),
    ("sim/backend/compiled/machine/x.cc", "sim/plan/plan.h"),
    ("sim/backend/cuda/run/x.cc", "sim/backend/cuda/driver/cuda_device.h"),
    ("sim/backend/cuda/run/x.cc", "cuda.h"),
    ("sim/backend/cuda/device.cc", "sim/backend/cuda/run/cuda_run.h"),
    ("server/scheduling/queue.cc", "grpcpp/grpcpp.h"),
    ("server/scheduling/queue.cc", "prometheus/counter.h"),
    ("server/service/rollout.cc", "prometheus/counter.h"),
    ("server/tracing/exporter.cc", "server/service/request_log.h"),
    ("server/validation/check.cc", "sim/engine.h"),
])
def test_an_upward_include_is_found(name, include):
    assert violations(name, f'#include "{include}"\n')


@pytest.mark.parametrize("whole", SUB_FOLDERS)
def test_sub_folders_use_those_below_them(whole):
    may_use = SUB_FOLDERS[whole]
    below = set()
    for folder, used in may_use.items():
        assert set(used) <= below, folder
        below.add(folder)


@pytest.mark.parametrize("whole", SUB_FOLDERS)
def test_every_sub_folder_has_a_place_and_a_readme(whole):
    folders = {sub_folder(whole, name) for name, _ in sources() if name.startswith(whole + "/")}
    assert folders == set(SUB_FOLDERS[whole])
    assert not [folder for folder in folders if not (ROOT / whole / folder / "README.md").exists()]


def test_wire_and_simulation_types_meet_only_in_conversion():
    problems = []
    for name, text in sources():
        targets = [target for _, target in INCLUDE.findall(text)]
        wire = any(target.startswith("simgrad/v1/") for target in targets)
        # A status with a field path is neither a wire type nor a simulation type.
        simulation = any(target == "sim/tensor.h" or target.startswith("sim/program/")
                         and target != "sim/program/field_error.h" for target in targets)
        if wire and simulation and not name.startswith(MEETING_PLACE):
            problems.append(name)
    assert not problems, problems


def test_raw_cuda_calls_stand_in_driver_and_compiler_only():
    places = ("sim/backend/cuda/driver/", "sim/backend/cuda/compiler/")
    call = re.compile(r"\b(cuda[A-Z]\w+|cu[A-Z]\w+|nvrtc[A-Z]\w+)\s*\(")
    problems = [name for name, text in sources()
                if not name.startswith(places) and call.search(text)]
    assert not problems, problems


def test_every_top_folder_has_a_readme():
    folders = ["precision", "sim", "server", "client", "proto", "deploy", "tests", "scripts", "docs"]
    assert not [folder for folder in folders if not (ROOT / folder / "README.md").exists()]


def test_no_file_is_named_after_nothing():
    for name, _ in sources():
        stem = pathlib.PurePath(name).stem
        assert not re.search(r"(^|_)(utils?|common|helpers?|manager)($|_)", stem), name
