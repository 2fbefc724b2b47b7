# bash completion of tessera; source it or install it as /usr/share/bash-completion/completions/tessera
_tessera() {
    local word="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
    local flags='' words=''
    if [ "$word" = = ]; then
        word=''
    elif [ "$prev" = = ]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W 'run bench perplexity quantize convert inspect tokenize synth test-ops doctor help --version --completion' -- "$word"))
        return
    fi
    case "${COMP_WORDS[1]}" in
    run)
        case "$prev" in
        -c|--ctx-size) return ;;
        -b|--batch-size) return ;;
        -ub|--ubatch-size) return ;;
        -ctk|--cache-type-k) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -ctv|--cache-type-v) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -p|--prompt) return ;;
        -sys|--system-prompt) return ;;
        -n|--predict|--n-predict) return ;;
        -r|--reverse-prompt|--stop) return ;;
        --chat-template) return ;;
        --chat-template-kwargs) return ;;
        -s|--seed) return ;;
        --temp|--temperature) return ;;
        --top-k) return ;;
        --top-p) return ;;
        --min-p) return ;;
        --repeat-last-n) return ;;
        --repeat-penalty) return ;;
        --presence-penalty) return ;;
        --frequency-penalty) return ;;
        --spec-type) COMPREPLY=($(compgen -W 'none draft-mtp' -- "$word")); return ;;
        --spec-draft-n-max|--draft-max) return ;;
        --spec-draft-p-min|--draft-p-min) return ;;
        -ctxcp|--ctx-checkpoints) return ;;
        -t|--threads) return ;;
        --act) COMPREPLY=($(compgen -W 'auto f32 bf16 int8 nvfp4 fp8' -- "$word")); return ;;
        --act-policy) COMPREPLY=($(compgen -W 'search amax6 four-six' -- "$word")); return ;;
        --emulate) COMPREPLY=($(compgen -W 'none general fp4' -- "$word")); return ;;
        --backend) COMPREPLY=($(compgen -W 'auto cpu cuda reference' -- "$word")); return ;;
        -dev|--device) return ;;
        --isa) COMPREPLY=($(compgen -W 'scalar neon avx2 avx512 amx' -- "$word")); return ;;
        -fa|--flash-attn) COMPREPLY=($(compgen -W 'auto on off 1 0' -- "$word")); return ;;
        -lm|--load-mode) COMPREPLY=($(compgen -W 'auto none mmap' -- "$word")); return ;;
        -ngl|--gpu-layers|--n-gpu-layers) return ;;
        -co|--color) COMPREPLY=($(compgen -W 'auto on off' -- "$word")); return ;;
        esac
        flags='--help -m --model -c --ctx-size -b --batch-size -ub --ubatch-size -ctk --cache-type-k -ctv --cache-type-v -p --prompt -f --file -sys --system-prompt -sysf --system-prompt-file -n --predict --n-predict -r --reverse-prompt --stop -e --escape --no-escape --ignore-eos -sp --special --display-prompt --no-display-prompt --verbose-prompt -cnv --conversation -no-cnv --no-conversation -st --single-turn --chat-template --chat-template-file --chat-template-kwargs --jinja -s --seed --temp --temperature --top-k --top-p --min-p --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty --spec-type --spec-draft-n-max --draft-max --spec-draft-p-min --draft-p-min --spec-draft-adaptive --no-spec-draft-adaptive -ctxcp --ctx-checkpoints -t --threads --act --act-policy --emulate --delta-bf16 --no-delta-bf16 --backend -dev --device --isa -fa --flash-attn -lm --load-mode -ngl --gpu-layers --n-gpu-layers --poison --no-poison --synchronous --no-synchronous -co --color --perf --no-perf -v --verbose'
        words='' ;;
    bench)
        case "$prev" in
        --synth) return ;;
        -p|--n-prompt) return ;;
        -n|--n-gen) return ;;
        -pg) return ;;
        -d|--n-depth) return ;;
        -r|--repetitions) return ;;
        --delay) return ;;
        -b|--batch-size) return ;;
        -ub|--ubatch-size) return ;;
        -ctk|--cache-type-k) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -ctv|--cache-type-v) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -t|--threads) return ;;
        -fa|--flash-attn) COMPREPLY=($(compgen -W 'auto on off 1 0' -- "$word")); return ;;
        -lm|--load-mode) COMPREPLY=($(compgen -W 'auto none mmap' -- "$word")); return ;;
        --act) COMPREPLY=($(compgen -W 'auto f32 bf16 int8 nvfp4 fp8' -- "$word")); return ;;
        --emulate) COMPREPLY=($(compgen -W 'none general fp4' -- "$word")); return ;;
        --act-policy) COMPREPLY=($(compgen -W 'search amax6 four-six' -- "$word")); return ;;
        --backend) COMPREPLY=($(compgen -W 'auto cpu cuda reference' -- "$word")); return ;;
        --isa) COMPREPLY=($(compgen -W 'scalar neon avx2 avx512 amx' -- "$word")); return ;;
        -ngl|--n-gpu-layers) return ;;
        -o|--output) COMPREPLY=($(compgen -W 'md csv json jsonl' -- "$word")); return ;;
        -oe|--output-err) COMPREPLY=($(compgen -W 'md csv json jsonl none' -- "$word")); return ;;
        esac
        flags='--help -m --model --synth -p --n-prompt -n --n-gen -pg -d --n-depth -r --repetitions --delay --warmup --no-warmup -b --batch-size -ub --ubatch-size -ctk --cache-type-k -ctv --cache-type-v -t --threads -fa --flash-attn -lm --load-mode --act --emulate --act-policy --delta-bf16 --no-delta-bf16 --backend --isa -ngl --n-gpu-layers -o --output -oe --output-err --ops --progress -v --verbose'
        words='' ;;
    perplexity)
        case "$prev" in
        -c|--ctx-size) return ;;
        -b|--batch-size) return ;;
        -ub|--ubatch-size) return ;;
        -ctk|--cache-type-k) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -ctv|--cache-type-v) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -p|--prompt) return ;;
        --chunks) return ;;
        --ppl-stride) return ;;
        --ppl-output-type) return ;;
        -t|--threads) return ;;
        --act) COMPREPLY=($(compgen -W 'auto f32 bf16 int8 nvfp4 fp8' -- "$word")); return ;;
        --act-policy) COMPREPLY=($(compgen -W 'search amax6 four-six' -- "$word")); return ;;
        --emulate) COMPREPLY=($(compgen -W 'none general fp4' -- "$word")); return ;;
        --backend) COMPREPLY=($(compgen -W 'auto cpu cuda reference' -- "$word")); return ;;
        -dev|--device) return ;;
        --isa) COMPREPLY=($(compgen -W 'scalar neon avx2 avx512 amx' -- "$word")); return ;;
        -fa|--flash-attn) COMPREPLY=($(compgen -W 'auto on off 1 0' -- "$word")); return ;;
        -lm|--load-mode) COMPREPLY=($(compgen -W 'auto none mmap' -- "$word")); return ;;
        -ngl|--gpu-layers|--n-gpu-layers) return ;;
        esac
        flags='--help -m --model -c --ctx-size -b --batch-size -ub --ubatch-size -ctk --cache-type-k -ctv --cache-type-v -f --file -p --prompt --chunks --ppl-stride --ppl-output-type --save-all-logits --kl-divergence-base --kl-divergence --progress --no-progress -v --verbose -t --threads --act --act-policy --emulate --delta-bf16 --no-delta-bf16 --backend -dev --device --isa -fa --flash-attn -lm --load-mode -ngl --gpu-layers --n-gpu-layers --poison --no-poison --synchronous --no-synchronous'
        words='' ;;
    quantize)
        case "$prev" in
        --output-tensor-type) COMPREPLY=($(compgen -W 'NVFP4 MXFP4 Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K' -- "$word")); return ;;
        --token-embedding-type) COMPREPLY=($(compgen -W 'NVFP4 MXFP4 Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K' -- "$word")); return ;;
        --tensor-type) return ;;
        --scale-policy) COMPREPLY=($(compgen -W 'search amax6 four-six' -- "$word")); return ;;
        --override-kv) return ;;
        -t|--threads) return ;;
        esac
        flags='--help --pure --allow-requantize --leave-output-tensor --output-tensor-type --token-embedding-type --tensor-type --scale-policy --override-kv --dry-run -t --threads'
        words='NVFP4 MXFP4 MXFP4_MOE Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q4_K_M Q4_K_S Q5_K Q5_K_M Q5_K_S Q6_K COPY' ;;
    convert)
        case "$prev" in
        --outtype) COMPREPLY=($(compgen -W 'auto bf16 f16 f32' -- "$word")); return ;;
        -t|--threads) return ;;
        esac
        flags='--help --outtype --outfile -t --threads'
        words='' ;;
    inspect)
        case "$prev" in
        -c|--ctx-size) return ;;
        -b|--batch-size) return ;;
        -ub|--ubatch-size) return ;;
        -ctk|--cache-type-k) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -ctv|--cache-type-v) COMPREPLY=($(compgen -W 'f16 f32 bf16 q8_0 fp8' -- "$word")); return ;;
        -t|--threads) return ;;
        --act) COMPREPLY=($(compgen -W 'auto f32 bf16 int8 nvfp4 fp8' -- "$word")); return ;;
        --act-policy) COMPREPLY=($(compgen -W 'search amax6 four-six' -- "$word")); return ;;
        --emulate) COMPREPLY=($(compgen -W 'none general fp4' -- "$word")); return ;;
        --backend) COMPREPLY=($(compgen -W 'auto cpu cuda reference' -- "$word")); return ;;
        -dev|--device) return ;;
        --isa) COMPREPLY=($(compgen -W 'scalar neon avx2 avx512 amx' -- "$word")); return ;;
        -fa|--flash-attn) COMPREPLY=($(compgen -W 'auto on off 1 0' -- "$word")); return ;;
        -lm|--load-mode) COMPREPLY=($(compgen -W 'auto none mmap' -- "$word")); return ;;
        -ngl|--gpu-layers|--n-gpu-layers) return ;;
        esac
        flags='--help --json --tensors --no-tensors --ops -m --model -c --ctx-size -b --batch-size -ub --ubatch-size -ctk --cache-type-k -ctv --cache-type-v -t --threads --act --act-policy --emulate --delta-bf16 --no-delta-bf16 --backend -dev --device --isa -fa --flash-attn -lm --load-mode -ngl --gpu-layers --n-gpu-layers --poison --no-poison --synchronous --no-synchronous'
        words='' ;;
    tokenize)
        case "$prev" in
        -p|--prompt) return ;;
        esac
        flags='--help -m --model -p --prompt -f --file --stdin --ids --no-bos --no-parse-special --show-count'
        words='' ;;
    synth)
        case "$prev" in
        --type) COMPREPLY=($(compgen -W 'NVFP4 MXFP4 Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K' -- "$word")); return ;;
        -s|--seed) return ;;
        -t|--threads) return ;;
        esac
        flags='--help --type -s --seed --vocab-from -t --threads'
        words='llama qwen2 qwen3 qwen3moe qwen35 qwen35moe tiny 135m 1b 8b qwen3-30b-a3b 0.8b qwen3.5-27b qwen3.6-35b-a3b' ;;
    test-ops)
        case "$prev" in
        -o|--op) return ;;
        -p|--params) return ;;
        -b|--backend) COMPREPLY=($(compgen -W 'auto cpu cuda reference' -- "$word")); return ;;
        -t|--threads) return ;;
        --act) COMPREPLY=($(compgen -W 'auto f32 bf16 int8 nvfp4 fp8' -- "$word")); return ;;
        --act-policy) COMPREPLY=($(compgen -W 'search amax6 four-six' -- "$word")); return ;;
        --emulate) COMPREPLY=($(compgen -W 'none general fp4' -- "$word")); return ;;
        --isa) COMPREPLY=($(compgen -W 'scalar neon avx2 avx512 amx' -- "$word")); return ;;
        --output) COMPREPLY=($(compgen -W 'console csv jsonl' -- "$word")); return ;;
        esac
        flags='--help -o --op -p --params -b --backend -t --threads --act --act-policy --emulate --delta-bf16 --no-delta-bf16 --isa --poison --no-poison --synchronous --no-synchronous --output'
        words='test perf support' ;;
    doctor)
        case "$prev" in
        -b|--backend) COMPREPLY=($(compgen -W 'auto cpu cuda reference' -- "$word")); return ;;
        --emulate) COMPREPLY=($(compgen -W 'none general fp4' -- "$word")); return ;;
        -t|--threads) return ;;
        --isa) COMPREPLY=($(compgen -W 'scalar neon avx2 avx512 amx' -- "$word")); return ;;
        esac
        flags='--help -b --backend --quick --emulate -t --threads --isa'
        words='' ;;
    help) words='run bench perplexity quantize convert inspect tokenize synth test-ops doctor help' flags='--man --markdown' ;;
    --completion) words='bash zsh fish' ;;
    esac
    case "$word" in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word")) ;;
    esac
}
complete -o filenames -F _tessera tessera
