#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can check, in one command: all op cases and tests/gpu on the card,
# and a reduced list of op cases under the tools of compute-sanitizer. Ends with a summary; exit code 1 when anything
# failed, a test skipped itself or eight minutes were not enough.
#   scripts/gpu-check.sh                  installs what is missing, builds build-gpu for this card alone, checks
#   scripts/gpu-check.sh --no-bootstrap   installs nothing
#   scripts/gpu-check.sh --with DIR       builds nothing: DIR has tessera, libtessera_cuda.so, racecheck/ with the
#                                         library for that tool (not with --no-sanitizer) and test_gpu (or tests/test_gpu); the checkout is
#                                         needed for its test data
# Also: --no-sanitizer leaves compute-sanitizer out; --jobs N processes at a time (default: a core each, 12 at most);
# --logs DIR for logs and summary; --commit NAME is what the summary calls the build (default: git's).
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
begin=$SECONDS
seconds_left=470 # of eight minutes, the build included

die() {
    echo "gpu-check: $1" >&2
    exit 1
}

bootstrap=1 with='' sanitizer=1 jobs='' logs='' commit=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --no-bootstrap) bootstrap=0 ;;
        --no-sanitizer) sanitizer=0 ;;
        --with | --jobs | --logs | --commit)
            [[ $# -ge 2 ]] || die "$1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift
            ;;
        -h | --help)
            sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
            exit 0
            ;;
        *) die "unknown argument '$1'; known are --no-bootstrap, --with, --no-sanitizer, --jobs, --logs, --commit" ;;
    esac
    shift
done
for path in with logs; do
    [[ -z ${!path} || ${!path} == /* ]] || printf -v "$path" '%s' "$caller/${!path}"
done

# ---- the card ----
no_gpu="this check needs an NVIDIA GPU; test.sh is the suite for machines without one"
command -v nvidia-smi >/dev/null || die "no nvidia-smi here, so no NVIDIA driver: $no_gpu"
card=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>&1 | head -1) || true
IFS=, read -r card_name driver capability <<<"$card"
driver=${driver# } capability=${capability//[[:space:]]/}
[[ $capability =~ ^[0-9]+\.[0-9]+$ ]] || die "nvidia-smi names no GPU ($card): $no_gpu"
case $capability in
    8.*) arch=80 ;;
    9.0) arch=90a ;;
    12.*) arch=120f ;;
    1[0-9].*) arch=80 ;; # by its PTX
    *) die "$card_name has compute capability $capability; the kernels need 8.0 or later" ;;
esac

# ---- the programs ----
if [[ -z $with ]]; then
    if [[ $bootstrap -eq 1 ]]; then
        scripts/bootstrap.sh --cuda
    fi
    dir=build-gpu
    logs=${logs:-$dir/gpu-check}
    rm -rf "$logs"
    mkdir -p "$logs"
    echo "gpu-check: building $dir for sm_$arch" >&2
    if ! { cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_TESTS=ON -DTESSERA_CUDA=ON \
        "-DTESSERA_CUDA_ARCHS=$arch" && cmake --build "$dir" --target tessera tessera_cuda tessera_cuda_racecheck test_gpu; } \
        >"$logs/build.log" 2>&1; then
        tail -40 "$logs/build.log" >&2
        die "the build failed; its log is $logs/build.log"
    fi
else
    dir=$with
    logs=${logs:-$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX")}
    mkdir -p "$logs"
fi
rm -f "$logs"/*.{rc,time} "$logs"/{ops,gpu}-*.log
build_seconds=$((SECONDS - begin))
tests=$dir/test_gpu
[[ -x $tests ]] || tests=$dir/tests/test_gpu
for file in "$dir/tessera" "$dir/libtessera_cuda.so" "$tests"; do
    [[ -f $file ]] || die "$file is missing"
done
# A program looks for the library in its own folder.
if [[ $(dirname "$tests") != "$dir" && ! -f $(dirname "$tests")/libtessera_cuda.so ]]; then
    mkdir -p "$logs/bin"
    cp "$tests" "$dir/libtessera_cuda.so" "$logs/bin"
    tests=$logs/bin/test_gpu
fi
if [[ $sanitizer -eq 1 ]]; then
    [[ -f $dir/racecheck/libtessera_cuda.so ]] || die "$dir/racecheck/libtessera_cuda.so is missing"
    mkdir -p "$logs/racecheck"
    cp "$dir/tessera" "$dir/racecheck/libtessera_cuda.so" "$logs/racecheck"
fi
tessera=$dir/tessera
[[ $tessera == /* ]] || tessera=$PWD/$tessera
[[ $tests == /* ]] || tests=$PWD/$tests

# ---- a pool of processes ----
cores=$(nproc)
jobs=${jobs:-$((cores < 12 ? cores : 12))}
running=0
# start NAME COMMAND...: output to NAME.log, exit code to NAME.rc, seconds to NAME.time.
start() {
    local name=$1 left=$((seconds_left - (SECONDS - begin)))
    shift
    if [[ $running -ge $jobs ]]; then
        wait -n || true
        running=$((running - 1))
    fi
    (
        from=$SECONDS rc=0
        timeout "$((left > 5 ? left : 5))" "$@" >"$logs/$name.log" 2>&1 || rc=$?
        echo "$((SECONDS - from))" >"$logs/$name.time"
        echo "$rc" >"$logs/$name.rc"
    ) &
    running=$((running + 1))
}
finish() {
    wait
    running=0
}
trap 'kill $(jobs -p) 2>/dev/null || true' INT TERM

# ---- what runs ----
# Parts of the list of op cases, disjoint; what matches none of them makes the last part, so that no case is lost.
op_parts=(
    'MUL_MAT\(type=(NVFP4|MXFP4)' 'MUL_MAT\(type=Q[45]_[01]' 'MUL_MAT\(type=Q._K' 'MUL_MAT\(type=(Q8_0|BF16|F16)'
    'MUL_MAT_ID\(type=(NVFP4|MXFP4)' 'MUL_MAT_ID\(type=Q[45]_[01]' 'MUL_MAT_ID\(type=Q._K'
    'MUL_MAT_ID\(type=(Q8_0|BF16|F16)' 'GATED_DELTA_NET' 'FLASH_ATTN' 'LINEAR' 'PREPARE|RMS_NORM|GLU|GATED_RMS' 'CPY'
    'ROPE|QK_NORM|KV_STORE|SAMPLE|ARGMAX'
)
rest=$(IFS='|' && echo "${op_parts[*]}")
# Small cases of every op, for tools that slow kernels down a hundred times.
small_parts=(
    'MUL_MAT\(type=(NVFP4|Q4_K|Q8_0|BF16|F32),m=1[67],n=(1|5|17),' 'MUL_MAT\(type=(NVFP4|MXFP4|Q4_K|Q8_0|BF16),m=300,n=9,'
    'LINEAR_GLU\(type=NVFP4,m=288,n=70,' 'LINEAR_(GLU|MANY)\(type=(NVFP4|Q4_0),.*n=(1|16),'
    'MUL_MAT_ID\(type=(NVFP4|Q8_0|F32),n_mats=8,n_used=2,.*n=(1|17),' 'MUL_MAT_ID_GLU\(type=NVFP4'
    'TOPK_MOE\(n=3,n_mats=(8|60),n_used=4,' 'MOE_COMBINE\(n=1,n_used=[26],' 'QK_NORM_ROPE_STORE\(hs=64,nh=8' 'KV_STORE'
    'FLASH_ATTN\(hs=(64|128),nh=[28],nkv=2,type_k=(F16|Q8_0)' 'FLASH_ATTN\(hs=256,nh=16,nkv=2,type_k=F16'
    'FLASH_ATTN\(hs=(128|256),nh=6,nkv=2,type_k=(BF16|F8_E4M3),.*prompts=2'
    'GATED_DELTA_NET\(nk=(1,nv=1|2,nv=4|16,nv=48),hs_k=128,hs_v=128,runs=\[(128\+(70|11)|0\+70)'
    'GATED_DELTA_NET\(nk=1,nv=2,hs_k=32,hs_v=48,runs=\[(1\+3|0\+17|101\+65)\]' 'GATED_DELTA_NET.*accept=\[[13],'
    'SSM_CONV\(channels=3[37],taps=4' 'DELTA_GATES\(n=1,' 'L2_NORM\(ne=\[5,3,31\]' 'RMS_NORM\(ne=\[5,[0-9]*\]'
    '(PREPARE|GLU_INPUT|(GATED_)?RMS_NORM_INPUT)\(type=NVFP4' 'ADD\(ne=\[[1-9],[0-9]{1,2}\]' 'GLU\(op=[a-z]*,n=13,'
    'SOFT_MAX\(n=5,' 'ROPE\(n=5,heads=9,hs=64.*pos=1000' 'CPY\(type_src=F32,type_dst=.*ne=\[3,37\]' 'CONCAT\(type=F32'
    'GET_ROWS\(type=(NVFP4|Q4_K|F32).*n=64' 'ARGMAX\(n=6,vocab=1000' 'SAMPLE\(n=6,vocab=256,logits=[tnp]'
)
small="^($(IFS='|' && echo "${small_parts[*]}"))"
tools=(memcheck racecheck synccheck initcheck)
[[ $arch != 90a ]] || tools+=(race-fp8 mem-general race-general mem-fp4)
shards=$((jobs < 6 ? jobs : 6))

sanitizer_program=''
sanitizer_note='left out by --no-sanitizer'
if [[ $sanitizer -eq 1 ]]; then
    sanitizer_note='no compute-sanitizer on this machine'
    for candidate in compute-sanitizer "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"; do
        sanitizer_program=$(command -v "$candidate" || true)
        [[ -z $sanitizer_program ]] || break
    done
fi

check_begin=$SECONDS
echo "gpu-check: checking on $card_name, $jobs processes at a time; logs in $logs" >&2
if [[ -n $sanitizer_program ]]; then
    sanitize() { # NAME TOOL PROGRAM FLAGS...
        start "$1" "$sanitizer_program" --tool "$2" --error-exitcode 86 --print-limit 5 "$3" test-ops test -b cuda "${@:4}"
    }
    for tool in memcheck synccheck initcheck; do sanitize "$tool" "$tool" "$tessera" -p "$small"; done
    sanitize racecheck racecheck "$logs/racecheck/tessera" -p "$small"
    if [[ $arch == 90a ]]; then
        sanitize race-fp8 racecheck "$logs/racecheck/tessera" --act fp8 -p '^(MUL_MAT\(type=NVFP4,m=300,n=9,|LINEAR_GLU\(type=NVFP4,m=288,n=(64|95),)'
        # What Blackwell cards run.
        general='^(GATED_DELTA_NET\(nk=(1,nv=1|16,nv=48),hs_k=128,hs_v=128,runs=\[(128\+(70|11)|0\+70)|FLASH_ATTN\(hs=(128|256),nh=6,nkv=2,type_k=(BF16|F8_E4M3),.*prompts=2)'
        sanitize mem-general memcheck "$tessera" --emulate general -p "$general"
        sanitize race-general racecheck "$tessera" --emulate general -p "$general"
        sanitize mem-fp4 memcheck "$tessera" --emulate fp4 -p '^(MUL_MAT\(type=(NVFP4|MXFP4),m=300,n=9,|LINEAR_GLU\(type=NVFP4,m=288,n=70,|MUL_MAT_ID\(type=(NVFP4|MXFP4),n_mats=6,n_used=2,.*m=(130|272)|MUL_MAT_ID_GLU\(type=(NVFP4|MXFP4),n_mats=(3|7|300),|(PREPARE|RMS_NORM_INPUT)\(type=NVFP4)'
    fi
fi
for ((shard = 0; shard < shards; ++shard)); do
    start "gpu-$shard" env GTEST_TOTAL_SHARDS="$shards" GTEST_SHARD_INDEX="$shard" "$tests" \
        --gtest_filter=-CardAlone.\*
done
for index in "${!op_parts[@]}"; do
    start "ops-$index" "$tessera" test-ops test -b cuda -p "^(${op_parts[index]})"
done
if [[ $arch == 90a ]]; then
    start ops-fp8 "$tessera" test-ops test -b cuda --act fp8 \
        -p '^(MUL_MAT|LINEAR|PREPARE|GLU_INPUT|RMS_NORM_INPUT|GATED_RMS)[A-Z_]*\(type=(NVFP4|MXFP4|Q8_0|F32)'
    start ops-fp4 "$tessera" test-ops test -b cuda --emulate fp4 \
        -p '^(MUL_MAT|LINEAR|PREPARE|GLU_INPUT|RMS_NORM_INPUT|GATED_RMS)[A-Z_]*\(type=(NVFP4|MXFP4)'
    start ops-bf16 "$tessera" test-ops test -b cuda --delta-bf16 -o GATED_DELTA_NET
    start ops-general "$tessera" test-ops test -b cuda --emulate general \
        -p '^(GATED_DELTA_NET|FLASH_ATTN|LINEAR|MUL_MAT\(type=(NVFP4|MXFP4|Q8_0|BF16))'
fi
start hidden env CUDA_VISIBLE_DEVICES= "$tessera" test-ops support -b cuda
start ops-rest "$tessera" test-ops test -b cuda -p "^(?!$rest)"
finish
# Tests that take nearly all memory of the card.
start gpu-alone "$tests" --gtest_filter=CardAlone.\*
finish

# ---- the summary ----
failed=0
report=()
add() { report+=("$(printf '  %-11s %-7s %s' "$1" "$2" "$3")"); }
sum() { awk '{ sum += $1 } END { print sum + 0 }'; }
rc_of() { cat "$logs/$1.rc" 2>/dev/null || echo 'no result'; }
# Names of processes of a kind that did not end well.
bad_of() {
    local file name
    for file in "$logs/$1"-*.log; do
        name=$(basename "$file" .log)
        case $(rc_of "$name") in
            0) ;;
            124) echo "$name (not done in time)" ;;
            *) echo "$name (exit code $(rc_of "$name"))" ;;
        esac
    done | paste -sd ' '
}
longest_of() { sort -n "$logs/$1"-*.time | tail -1; }

ok_cases=$(sed -nE 's:^ +([0-9]+)/[0-9]+ tests passed$:\1:p' "$logs"/ops-*.log | sum)
all_cases=$(sed -nE 's:^ +[0-9]+/([0-9]+) tests passed$:\1:p' "$logs"/ops-*.log | sum)
bad=$(bad_of ops)
if [[ -n $bad || $all_cases -eq 0 || $ok_cases -ne $all_cases ]]; then
    failed=1
    add 'op cases' FAIL "$ok_cases of $all_cases passed; $bad"
else
    add 'op cases' ok "$ok_cases of $all_cases passed, $(longest_of ops) s"
fi

ok_tests=$(cat "$logs"/gpu-*.log | grep -c '^\[       OK \]' || true)
bad_tests=$(cat "$logs"/gpu-*.log | grep -cE '^\[  FAILED  \] .* \([0-9]+ ms\)$' || true)
skipped=$(cat "$logs"/gpu-*.log | grep -cE '^\[  SKIPPED \] .* \([0-9]+ ms\)$' || true)
bad=$(bad_of gpu)
if [[ -n $bad || $bad_tests -ne 0 || $skipped -ne 0 || $ok_tests -eq 0 ]]; then
    failed=1
    add test_gpu FAIL "$ok_tests passed, $bad_tests failed, $skipped skipped; $bad"
else
    add test_gpu ok "$ok_tests passed, $(longest_of gpu) s"
fi

if [[ $(rc_of hidden) == 5 && $(wc -l <"$logs/hidden.log") -eq 1 ]]; then
    add 'no card' ok 'one line and exit code 5 where CUDA_VISIBLE_DEVICES hides it'
else
    failed=1
    add 'no card' FAIL "a hidden card gives exit code $(rc_of hidden) and $(wc -l <"$logs/hidden.log") lines"
fi

if [[ -z $sanitizer_program ]]; then
    add sanitizer skipped "$sanitizer_note"
else
    for tool in "${tools[@]}"; do
        log=$logs/$tool.log
        verdict=$(grep -E '(ERROR|RACECHECK) SUMMARY' "$log" | tail -1 | sed 's/^=* *//' || true)
        passed=$(sed -nE 's:^ +([0-9]+/[0-9]+) tests passed$:\1:p' "$log")
        if grep -q 'Device not supported' "$log"; then
            add "$tool" skipped 'compute-sanitizer: the device is not supported on this machine'
        elif [[ $(rc_of "$tool") == 0 && $verdict =~ SUMMARY:\ 0\  ]]; then
            add "$tool" ok "$passed cases, 0 errors, $(cat "$logs/$tool.time") s"
        else
            failed=1
            [[ $(rc_of "$tool") != 124 ]] || verdict='not done in time'
            add "$tool" FAIL "$passed cases, ${verdict:-exit code $(rc_of "$tool")}; see $log"
        fi
    done
fi

if [[ -z $commit ]]; then
    commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
    [[ -z $(git status --porcelain --untracked-files=no 2>/dev/null) ]] || commit="$commit with changes"
fi
result=passed
[[ $failed -eq 0 ]] || result=FAILED
{
    echo "gpu-check $result: $card_name (sm_${capability/./}), driver $driver, $(date -u +%Y-%m-%d), commit $commit"
    printf '%s\n' "${report[@]}"
    echo "  time        $((SECONDS - begin)) s: build $build_seconds s, checks $((SECONDS - check_begin)) s"
} | tee "$logs/summary.txt"
if [[ $failed -ne 0 ]]; then
    grep -hE '^  .*: FAIL \(|^\[  FAILED  \] .* \([0-9]+ ms\)$' "$logs"/*.log | head -40 >&2 || true
    for file in "$logs"/{ops,gpu}-*.rc; do
        [[ $(<"$file") != 0 ]] || continue
        echo "--- the end of ${file%.rc}.log" >&2
        tail -5 "${file%.rc}.log" >&2
    done
    echo "gpu-check: logs are in $logs" >&2
    exit 1
fi
