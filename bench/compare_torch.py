#!/usr/bin/env python3
"""libgma beside PyTorch in one process, call by call in turn: softmax attention (SDPA), GMA as published, GMA written with
one product and chunks, and the Linear Transformer; forward, and forward with backward; time and memory.

    bench/compare_torch.py [--library build/lib/libgma.so] [--lengths 256,512,..] [--document docs/performance.md]
    bench/compare_torch.py --mixers       the other mixers beside their peers instead: see compare_mixers.py

GMA_ISA in the environment holds libgma to a tier; with GMA_ISA=avx2 PyTorch, its MKL and its oneDNN are held to AVX2 too.
Both sides share one OpenMP runtime (the system's is loaded first), so that no idle thread of one disturbs the other.
Nothing is timed before every contender has been checked against its definition in double.
"""
import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PREPARED = "GMA_BENCH_PREPARED"


def prepare_environment():
    """What must be set before the process starts; returns only in a process that has it."""
    if os.environ.get(PREPARED):
        return
    env = dict(os.environ, **{PREPARED: "1", "LD_PRELOAD": "libgomp.so.1"})
    if env.get("GMA_ISA") == "avx2":
        env.update(ATEN_CPU_CAPABILITY="avx2", MKL_ENABLE_INSTRUCTIONS="AVX2", ONEDNN_MAX_CPU_ISA="AVX2",
                   DNNL_MAX_CPU_ISA="AVX2")
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


if __name__ == "__main__":
    prepare_environment()

import torch  # noqa: E402

import gma_ctypes  # noqa: E402
import peers  # noqa: E402

HEADS, WIDTH, COMPONENTS = 8, 64, 128
PUBLISHED_LIMIT = 1024  # its (N,K,R) tensors grow too large
SDPA_LIMIT = {True: 16384, False: 8192}  # grows with N^2; causal, bidirectional
OURS = ("gma", "kept")
PASSES = ("fwd", "fwdbwd")

# ---- Contenders --------------------------------------------------------------------------------------------------


def make_inputs(length, dtype=torch.float32):
    g = torch.Generator().manual_seed(length)
    draw = lambda *shape: torch.randn(*shape, generator=g)
    x = {n: draw(1, HEADS, length, WIDTH) for n in ("q", "k", "v")}
    x.update(mu=0.5 * draw(HEADS, COMPONENTS, WIDTH), omega=1 + 0.2 * draw(HEADS, COMPONENTS, WIDTH),
             alpha=0.3 * draw(HEADS, COMPONENTS))
    return {n: t.to(dtype) for n, t in x.items()}, draw(1, HEADS, length, WIDTH).to(dtype)


def torch_call(function, names, x, grad_o, causal, which):
    if which == "fwd":
        with torch.inference_mode():
            return function(x, causal), {}
    leaves = {n: (t.detach().requires_grad_(n in names)) for n, t in x.items()}
    o = function(leaves, causal)
    o.backward(grad_o)
    return o.detach(), {n: leaves[n].grad for n in names}


def contenders(library, x, grad_o, causal, which, threads, length, only=()):
    attention = {n: gma_ctypes.Mixer(library, "gma", x, threads, n == "kept", causal=causal, components=COMPONENTS) for n in OURS}

    def ours(a):
        return (a.forward(x), {}) if which == "fwd" else a.forward_backward(x, grad_o)

    calls = {n: lambda a=a: ours(a) for n, a in attention.items()}
    for name, function in peers.FUNCTIONS.items():
        names = ("q", "k", "v") + peers.PARAMETERS[name]
        if (name == "published" and length > PUBLISHED_LIMIT) or (name == "sdpa" and length > SDPA_LIMIT[causal]):
            continue
        calls[name] = lambda f=function, n=names: torch_call(f, n, x, grad_o, causal, which)
    return {n: f for n, f in calls.items() if not only or n in only}, attention["gma"].size


# ---- Correctness -------------------------------------------------------------------------------------------------


def worst(a, b):
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


def check(library, threads, only, log):
    """Every contender against its definition in double: output and every gradient."""
    for causal in (True, False):
        x, grad_o = make_inputs(256)
        x64, g64 = {n: t.double() for n, t in x.items()}, grad_o.double()
        calls, _ = contenders(library, x, grad_o, causal, "fwdbwd", threads, 256, only)
        for name, call in calls.items():
            kind = "product" if name in OURS else name
            definition, names = peers.DEFINITIONS[kind], ("q", "k", "v") + peers.PARAMETERS[kind]
            o, grads = call()
            ref_o, ref_grads = torch_call(definition, names, x64, g64, causal, "fwdbwd")
            errors = {"o": worst(o, ref_o), **{n: worst(grads[n], ref_grads[n]) for n in names}}
            where = max(errors, key=errors.get)
            log(f"check {'causal' if causal else 'bidirectional'} {peers.NAMES[name]}: worst is {where}, {errors[where]:.1e}")
            if not errors[where] < 1e-3:
                raise SystemExit(f"{peers.NAMES[name]} is wrong ({where}: {errors[where]:.1e}); nothing was timed")


# ---- Time and memory ---------------------------------------------------------------------------------------------


def cpu_ticks():
    """(busy of the whole machine, of this process) in seconds."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, soft = [int(w) for w in f.readline().split()[1:8]]
    t = os.times()
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK"), t.user + t.system


def wait_for_quiet(limit):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = cpu_ticks()[0]
        time.sleep(0.25)
        if cpu_ticks()[0] - before < 0.05:
            return


def timed(call):
    """(ms, whether others took less than about 5 % of the CPUs meanwhile)."""
    busy, own = cpu_ticks()
    preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    start = time.perf_counter()
    call()
    took = time.perf_counter() - start
    preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - preempted
    busy2, own2 = cpu_ticks()
    if took < 0.1:  # shorter than what the ticks can tell; the kernel's own work comes now and then
        return 1e3 * took, preempted <= 1 + 100 * took
    return 1e3 * took, (busy2 - busy) - (own2 - own) < 0.05 * len(os.sched_getaffinity(0)) * took + 0.03


def median(values):
    v = sorted(values)
    return v[len(v) // 2] if len(v) % 2 else 0.5 * (v[len(v) // 2 - 1] + v[len(v) // 2])


SLOW = 1.5  # seconds: one sample of such a call tells enough


def race(calls, first, budget, rounds):
    """All in turn, the order turning too. first: seconds of each contender's warm call. Returns {name: {ms, samples, clean}}."""
    samples = {name: [] for name in calls}
    spent = dict.fromkeys(calls, 0.0)
    wanted = {name: 1 if first[name] > SLOW else 3 for name in calls}
    wait_for_quiet(2)
    names = list(calls)
    for i in range(rounds):
        todo = [n for n in names
                if len(samples[n]) < wanted[n] or (wanted[n] > 1 and spent[n] < budget / len(names))]
        if not todo:
            break
        for name in todo[i % len(todo):] + todo[:i % len(todo)]:
            ms, clean = timed(calls[name])
            samples[name].append((ms, clean))
            spent[name] += ms / 1e3
    result = {}
    for name, list_ in samples.items():
        clean = [ms for ms, ok in list_ if ok]
        kept = clean if len(clean) >= 3 or len(clean) == len(list_) else [ms for ms, _ in list_]
        result[name] = {"ms": median(kept), "min": min(ms for ms, _ in list_), "samples": len(list_), "clean": len(clean)}
    return result


def status_kib(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key + ":"))


def first_call(call, libc):
    """(MiB that a call adds to the process at its peak, beyond the inputs; seconds). It warms the contender up as well."""
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    before = status_kib("VmRSS")
    start = time.perf_counter()
    call()
    return max(0, status_kib("VmHWM") - before) / 1024, time.perf_counter() - start


def measure(library, options, log):
    libc = ctypes.CDLL(None)
    rows = []
    for length in options.lengths:
        x, grad_o = make_inputs(length)
        for causal in (True, False):
            if length > SDPA_LIMIT[True] and not causal:
                continue
            for which in PASSES:
                calls, size = contenders(library, x, grad_o, causal, which, options.threads, length, options.only)
                for name in OURS:
                    if name in calls:
                        calls[name]()  # makes the scratch, which later calls share
                first = {name: first_call(call, libc) for name, call in calls.items()}
                times = race(calls, {n: f[1] for n, f in first.items()}, options.budget, options.rounds)
                if "gma" in calls and "product" in calls and first["product"][1] < SLOW:
                    error = worst(calls["gma"]()[0], calls["product"]()[0])
                    if not error < 1e-3:
                        raise SystemExit(f"N = {length}: libgma and PyTorch GMA differ by {error:.1e}")
                for name in calls:
                    times[name]["mib"] = first[name][0]
                rows.append({"length": length, "causal": causal, "pass": which, "load": os.getloadavg()[0],
                             "contenders": times,
                             "scratch": max(size.forward_scratch, size.backward_scratch if which == "fwdbwd" else 0),
                             "saved": size.saved if which == "fwdbwd" else 0})
                log(f"N={length:6} {'causal' if causal else 'bidir.'} {which:6} " + "  ".join(
                    f"{n} {t['ms']:.2f} ms ({t['clean']}/{t['samples']}) {t['mib']:.0f} MiB" for n, t in times.items()))
                del calls
    return rows


# ---- Main --------------------------------------------------------------------------------------------------------


def run_json(command, **env):
    done = subprocess.run(command, env=dict(os.environ, **env), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def with_huge_pages(options):
    """Goal (c): PyTorch's allocator helped by transparent huge pages; a process of its own, since glibc asks at start."""
    return run_json([sys.executable, os.path.abspath(__file__), "--library", options.library, "--raw", "--lengths", "16384",
                     "--only", "gma,kept,product", "--budget", str(options.budget), "--threads", str(options.threads)],
                    GLIBC_TUNABLES="glibc.malloc.hugetlb=1")["rows"]


def bench_op(options, tier):
    """Goals (a), (f), (g) from the program itself."""
    program = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(options.library))), "bin", "gma")
    common = [program, "bench", "op", "--format", "json", "--threads", str(options.threads), "--isa", tier, "--causal",
              "--repeat", "11"]
    run = lambda *more: run_json([*common, *more], LD_PRELOAD="")
    return {"fwd": run("--length", "4096,16384"), "fwdbwd": run("--pass", "fwdbwd", "--length", "4096,16384"),
            "decode": run("--pass", "decode", "--length", "100,1000000"),
            "decode1": run("--pass", "decode", "--length", "100,1000000", "--threads", "1")}


def facts(library, options):
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"cpu": cpu, "cpus": len(os.sched_getaffinity(0)), "threads": options.threads, "tier": library.tier(),
            "torch": torch.__version__, "torch_tier": torch.backends.cpu.get_cpu_capability(),
            "version": library.version(), "commit": commit.stdout.strip() or "unknown",
            "date": time.strftime("%Y-%m-%d", time.gmtime())}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default=os.path.join(ROOT, "build", "lib", "libgma.so"))
    p.add_argument("--lengths", default="256,384,512,1024,4096,8192,16384,65536",
                   type=lambda s: [int(n) for n in s.split(",")])
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--budget", type=float, default=4.0, help="seconds for all contenders of one line of the table")
    p.add_argument("--rounds", type=int, default=200)
    p.add_argument("--only", default="", type=lambda s: s.split(",") if s else [])
    p.add_argument("--mixers", action="store_true", help="the other mixers beside their peers in Python")
    p.add_argument("--longest", type=int, default=1 << 20, help="with --mixers: leave longer sequences out")
    p.add_argument("--document", help="Markdown file that gets the result (its block of this tier is replaced)")
    p.add_argument("--raw", action="store_true", help="only print the samples as JSON")
    options = p.parse_args()
    if any(n % peers.CHUNK for n in options.lengths):
        p.error(f"--lengths: multiples of {peers.CHUNK}, which the PyTorch versions need")
    log = lambda text: print(text, file=sys.stderr, flush=True)
    torch.set_num_threads(options.threads)
    library = gma_ctypes.Library(options.library)
    if options.mixers:
        import compare_mixers
        compare_mixers.run(library, options, log)
        return
    check(library, options.threads, options.only, log)
    result = {"facts": facts(library, options), "rows": measure(library, options, log)}
    if options.raw:
        print(json.dumps(result))
        return
    result["huge"] = with_huge_pages(options) if 16384 in options.lengths else []
    result["op"] = bench_op(options, result["facts"]["tier"])
    import report
    if options.document:
        report.write(result, options.document)
        print("\n".join(report.goal_table(result)))
    else:
        print(report.markdown(result, "plot.svg"))


if __name__ == "__main__":
    main()
