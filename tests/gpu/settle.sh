#!/usr/bin/env bash
# Settle on a machine with a GPU what only a GPU can show: from the root of a checkout, `tests/gpu/settle.sh [OUT]`.
#
# Stages of at most ten minutes, the most valuable first; STAGES="machine digest" selects some. Each command has a limit
# of its own, and none ends the others. Facts go to OUT/facts.jsonl, outputs to OUT/NAME.log (OUT: gpu_facts), and
# `python tests/gpu/facts_page.py OUT` makes a page of them. Nothing of the GPU's settings is changed.
#
# It needs torch built for CUDA, Triton, a C compiler and `pip install -e '.[dev]'`; vLLM for the stage of that name.
# Without a GPU it reports for each command that it was not run. DEVICE=cpu tries the measurements on the host.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../.." || exit 1
mkdir -p "${1:-gpu_facts}" || exit 1
out="$(cd "${1:-gpu_facts}" && pwd)"
export GPU_FACTS="$out/facts.jsonl" PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 CUDA_DEVICE_ORDER=PCI_BUS_ID
py="${PYTHON:-python3}"
device="${DEVICE:-cuda}"
all="machine runner digest invariant recording programs engine numbers tests vllm kill documented"
stages="${STAGES:-$all}"
for stage in $stages; do
    case " $all " in *" $stage "*) ;; *) echo "no stage $stage; there are: $all" >&2 && exit 4 ;; esac
done
has_gpu= has_driver=
[ ! -e /dev/nvidiactl ] || has_driver=1
"$py" "$here/facts.py" has-gpu 2>"$out/has-gpu.log" && has_gpu=1

STAGE_S=600
line() { printf '%s\n' "$1" >>"$GPU_FACTS"; }
# NAME LIMIT_S COMMAND...: run a command of a stage, its output in NAME.log, and report how it ended
run() {
    local name="$1" limit="$2" began code
    shift 2
    if [ -z "${is_able:-$has_gpu}" ] && [ "$device" = cuda ]; then
        line "{\"stage\": \"$stage\", \"command\": \"$name\", \"not_run\": \"no CUDA device is visible\"}"
        return
    fi
    local left=$((STAGE_S - (SECONDS - stage_began)))
    if [ "$left" -lt 10 ]; then
        line "{\"stage\": \"$stage\", \"command\": \"$name\", \"not_run\": \"the stage has had its time\"}"
        return
    fi
    limit=$((limit < left ? limit : left)) began=$SECONDS
    echo "== $stage: $name (at most $limit s)"
    timeout -k 10 "$limit" "$@" </dev/null >"$out/$name.log" 2>&1
    code=$?
    line "{\"stage\": \"$stage\", \"command\": \"$name\", \"exit_code\": $code, \"seconds\": $((SECONDS - began))}"
}
measure() { run "$1" "$2" "$py" "$here/facts.py" "${@:3}" --device "$device"; }
rlharness() { run "$1" "$2" "$py" -m harness "${@:3}"; }
pytest() { run "$1" "$2" "$py" -m pytest -q -rA -s -n 0 -p no:cacheprovider -m "" "${@:3}"; }
# NAME: a program of tests/gpu, alone and recorded
program() {
    run "$1" 60 "$py" "$here/programs/$1.py"
    rlharness "$1.recorded" 90 trace --out "$out/trace.$1" -- "$py" "$here/programs/$1.py"
}

machine() { # what the driver says, and what rlharness makes of it
    # These two need the driver alone: they explain a torch that finds no GPU.
    is_able="$has_driver" run nvidia-smi 30 nvidia-smi -q
    is_able="$has_driver" rlharness doctor 120 doctor --json
    measure nvml 60 nvml
    rlharness inventory 60 plan tests/gpu --gpus auto
}

runner() { # leases, memory that comes back, kernels that hang, a run within a lease
    pytest test_runner 240 tests/gpu/test_runner_on_gpus.py
    rlharness nested 240 run tests/gpu/test_runner_on_gpus.py --gpus auto --plain
}

digest() { # digests equal to the reference, their speed
    measure digest 300 digest
    pytest test_gpu_digest 240 tests/gpu/test_gpu_digest_on_gpus.py
}

recording() { # what a record costs a step of 1e9 parameters, and whether two runs repeat
    measure step 120 step
    local name
    for name in traced deterministic1 deterministic2; do
        rlharness "step.$name" 150 trace $([ "$name" = traced ] || echo --level deterministic) --out "$out/trace.$name" -- \
            "$py" "$here/facts.py" step --name "step.${name%[12]}" --device "$device" # one name: commands that differ are not comparable
    done
    rlharness step.diff 60 diff "$out/trace.deterministic1" "$out/trace.deterministic2"
    pytest test_recording 180 tests/gpu/test_recording_on_gpus.py
}

programs() { # programs that fork, set CUDA_VISIBLE_DEVICES late, checkpoint reentrantly, step in backward
    local name
    for name in forks late reentrant in_backward graph_trees; do program "$name"; done
}

engine() { # the engine on a GPU, and what its levels cost
    pytest test_engine 400 tests/gpu/test_engine_on_gpus.py
    pytest test_training 200 tests/gpu/test_training_on_gpus.py
}

invariant() { # level invariant: bits in any batch, what it costs, rollouts beside transformers' generate; four minutes
    run invariant 250 "$py" "$here/invariant.py" --device "$device"
    rlharness sweep.invariant 60 replay grpo_reverse_text --size tiny --level invariant --set model.device="$device" \
        --sweep runtime.concurrency=1,16 --out "$out/sweep.invariant"
    rlharness sweep.off 60 replay grpo_reverse_text --size tiny --level off --set model.device="$device" \
        --sweep runtime.concurrency=1,16 --out "$out/sweep.off" # 10: it diverges
}

numbers() { # which operations of torch keep the bits of a row, and which gradients repeat
    measure rows 60 rows
    measure products 90 products
    measure attention 90 attention
}

tests() { # the other files of tests/gpu, by plain pytest
    local file name
    for file in tests/gpu/test_*.py; do
        name="$(basename "$file" .py)"
        case "$name" in *_gpu_digest_* | *_recording_* | *_engine_* | *_training_* | *_runner_on_gpus | *_vllm_*) continue ;; esac
        pytest "$name" 180 "$file"
    done
}

vllm() { # vLLM: batch invariance, transports of weights, costs
    pytest test_vllm 590 tests/gpu/test_vllm_on_gpus.py
}

kill_() { # how long an end takes; late, since it leaves kernels that hang
    measure kill 400 kill
}

documented() { # everything as its documents say
    rlharness as_documented 590 run tests/gpu --gpus auto --plain
}

line "{\"stage\": \"\", \"date\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\", \"commit\": \"$(git rev-parse --short HEAD 2>/dev/null)\", \"device\": \"$device\", \"has_gpu\": ${has_gpu:-0}}"
for stage in $stages; do
    stage_began=$SECONDS
    case "$stage" in kill) kill_ ;; *) "$stage" ;; esac
done
echo "$GPU_FACTS; python tests/gpu/facts_page.py $out makes a page of it"
