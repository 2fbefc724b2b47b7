#!/usr/bin/env bash
# What each format of activations costs in quality, on one backend, as one table: perplexity of f32 activations and, for
# bf16, fp8, nvfp4, perplexity and KL divergence (mean, 99.9%) from them.
#   scripts/quality.sh MODEL TEXT [--chunks N] [-b BACKEND] [--acts "bf16 fp8 nvfp4"] [--tessera PROGRAM] [-- FLAGS...]
# FLAGS go to `tessera perplexity` (such as -c 2048 -t 8). What the backend refuses is a row with its reason. Ends with
# KL(fp8) / KL(nvfp4), which is to stay under 0.25. (--act auto is bf16 all the same, but on Blackwell.) Exit code 1 when a run failed otherwise.
# The logits of f32 are kept meanwhile in $TMPDIR, two bytes a token and word of the vocabulary.
set -euo pipefail

die() {
    echo "quality: $1" >&2
    exit 2
}

chunks=-1 backend=auto acts='bf16 fp8 nvfp4' tessera=$(dirname "$0")/../build/tessera
words=() flags=()
while [[ $# -gt 0 ]]; do
    case $1 in
        --chunks | --acts | --tessera | -b)
            [[ $# -ge 2 ]] || die "$1 needs a value"
            if [[ $1 == -b ]]; then backend=$2; else printf -v "${1#--}" '%s' "$2"; fi
            shift
            ;;
        -h | --help)
            sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
            exit 0
            ;;
        --)
            shift
            flags=("$@")
            break
            ;;
        -*) die "unknown flag $1" ;;
        *) words+=("$1") ;;
    esac
    shift
done
[[ ${#words[@]} -eq 2 ]] || die "two arguments are needed: MODEL TEXT"
model=${words[0]} text=${words[1]}
[[ -x $tessera ]] || die "no program $tessera: build it, or name it with --tessera"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# score ACT FLAGS...: stdout to out, stderr to err.
score() {
    local act=$1
    shift
    "$tessera" perplexity -m "$model" -c 512 --chunks "$chunks" --backend "$backend" --act "$act" --no-progress \
        --kl-divergence-base "$work/base" ${flags[@]+"${flags[@]}"} "$@" >"$work/out" 2>"$work/err"
}

# value LABEL: the number behind the label in the report.
value() {
    sed -n "s/^$1 *[:=] *\\([-0-9.naif]*\\).*/\\1/p" "$work/out" | head -1
}

score f32 -f "$text" || die "f32 activations, which all is compared with: $(tail -1 "$work/err")"
base=$(value 'Final estimate: PPL')
echo "| act | PPL | KL mean | KL 99.9% | same top token |"
echo "|---|---|---|---|---|"
printf '| f32 | %.3f | 0 | 0 | 100%% |\n' "$base"
failed=0
declare -A divergence
for act in $acts; do
    code=0
    score "$act" --kl-divergence || code=$?
    if [[ $code -ne 0 ]]; then
        # 2 and 5: a flag or a device that does not fit, which is an answer; anything else is a fault.
        [[ $code -eq 2 || $code -eq 5 ]] || failed=1
        printf '| %s | exit code %d: %s | | | |\n' "$act" "$code" "$(tail -1 "$work/err" | tr '|' '/')"
        continue
    fi
    divergence[$act]=$(value 'Mean *KLD')
    printf '| %s | %.3f | %.5f | %.4f | %.1f%% |\n' "$act" "$(value 'Mean PPL(Q)')" "${divergence[$act]}" \
        "$(value '99.9% *KLD')" "$(value 'Same top p')"
done
if [[ -n ${divergence[fp8]:-} && -n ${divergence[nvfp4]:-} ]]; then
    awk -v fp8="${divergence[fp8]}" -v nvfp4="${divergence[nvfp4]}" 'BEGIN {
        if (nvfp4 <= 0) { print "KL(fp8) / KL(nvfp4): nvfp4 differs in nothing"; exit }
        printf "\nKL(fp8) / KL(nvfp4) = %.3f, %s 0.25\n", fp8 / nvfp4,
               fp8 <= nvfp4 / 4 ? "at most" : "more than" }'
fi
exit $failed
