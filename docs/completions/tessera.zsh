#compdef tessera
_tessera() {
    local -a commands
    commands=(
        'run:answer a prompt, or chat'
        'bench:measure speed and memory as llama-bench does'
        'perplexity:measure how well a model predicts a text'
        'quantize:write a model in another number format'
        'convert:write a Hugging Face folder as one GGUF file'
        'inspect:show keys, tensors and memory need of a model'
        'tokenize:show the tokens of a text'
        'synth:write a random model of a given shape'
        'test-ops:check or time every op against the reference'
        'doctor:check that this machine computes right, as a report'
        'help:explain commands and flags'
    )
    if (( CURRENT == 2 )); then
        if [[ $words[2] == -* ]]; then
            compadd -- --help --version --completion
        else
            _describe command commands
        fi
        return
    fi
    local command="$words[2]"
    shift words
    (( CURRENT-- ))
    case "$command" in
    run)
        _arguments -S '--help[show the flags]' \
            '*-m[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*--model=[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*-c[tokens of context; 0\: what the model was trained with]:N:' \
            '*--ctx-size=[tokens of context; 0\: what the model was trained with]:N:' \
            '*-b[most tokens that are submitted at a time]:N:' \
            '*--batch-size=[most tokens that are submitted at a time]:N:' \
            '*-ub[most tokens of one forward pass]:N:' \
            '*--ubatch-size=[most tokens of one forward pass]:N:' \
            '*-ctk[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-k=[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-ctv[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-v=[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-p[the prompt]:TEXT:' \
            '*--prompt=[the prompt]:TEXT:' \
            '*-f[read the prompt from a file]:FILE:_files' \
            '*--file=[read the prompt from a file]:FILE:_files' \
            '*-sys[system message of the chat]:TEXT:' \
            '*--system-prompt=[system message of the chat]:TEXT:' \
            '*-sysf[read the system message from a file]:FILE:_files' \
            '*--system-prompt-file=[read the system message from a file]:FILE:_files' \
            '*-n[tokens to generate; -1\: until the answer ends, -2\: until the context is full]:N:' \
            '*--predict=[tokens to generate; -1\: until the answer ends, -2\: until the context is full]:N:' \
            '*--n-predict=[tokens to generate; -1\: until the answer ends, -2\: until the context is full]:N:' \
            '*-r[stop the answer before this text; may be given several times]:TEXT:' \
            '*--reverse-prompt=[stop the answer before this text; may be given several times]:TEXT:' \
            '*--stop=[stop the answer before this text; may be given several times]:TEXT:' \
            '*-e[\\n, \\t, \\xHH in texts are escapes]' \
            '*--escape[\\n, \\t, \\xHH in texts are escapes]' \
            '*--no-escape[\\n, \\t, \\xHH in texts are escapes]' \
            '*--ignore-eos[go on after an end token]' \
            '*-sp[show control tokens in the answer]' \
            '*--special[show control tokens in the answer]' \
            '*--display-prompt[repeat the prompt before the answer]' \
            '*--no-display-prompt[repeat the prompt before the answer]' \
            '*--verbose-prompt[list the tokens of the prompt]' \
            '*-cnv[chat through the model'\''s template; default\: where it has one]' \
            '*--conversation[chat through the model'\''s template; default\: where it has one]' \
            '*-no-cnv[chat through the model'\''s template; default\: where it has one]' \
            '*--no-conversation[chat through the model'\''s template; default\: where it has one]' \
            '*-st[end after the first answer]' \
            '*--single-turn[end after the first answer]' \
            '*--chat-template=[template instead of the model'\''s]:JINJA:' \
            '*--chat-template-file=[the same from a file]:FILE:_files' \
            '*--chat-template-kwargs=[object of further variables of the template]:JSON:' \
            '*--jinja[templates are always interpreted]' \
            '*-s[of the random numbers]:N:' \
            '*--seed=[of the random numbers]:N:' \
            '*--temp=[0\: always the most probable token]:X:' \
            '*--temperature=[0\: always the most probable token]:X:' \
            '*--top-k=[keep the N most probable tokens; 0\: all]:N:' \
            '*--top-p=[keep the most probable tokens up to this mass; 1\: all]:X:' \
            '*--min-p=[drop tokens less probable than X of the best; 0\: none]:X:' \
            '*--repeat-last-n=[tokens that the penalties look at; 0\: none, -1\: the context]:N:' \
            '*--repeat-penalty=[divides logits of repeated tokens]:X:' \
            '*--presence-penalty=[taken off repeated tokens once]:X:' \
            '*--frequency-penalty=[taken off repeated tokens every time]:X:' \
            '*--spec-type=[guess tokens ahead and verify them together; the answer stays the same]:NAME:(none draft-mtp)' \
            '*--spec-draft-n-max=[most guesses at a time]:N:' \
            '*--draft-max=[most guesses at a time]:N:' \
            '*--spec-draft-p-min=[guess no further than tokens of this probability]:X:' \
            '*--draft-p-min=[guess no further than tokens of this probability]:X:' \
            '*--spec-draft-adaptive[fewer guesses or none while they do not pay]' \
            '*--no-spec-draft-adaptive[fewer guesses or none while they do not pay]' \
            '*-ctxcp[states kept of a recurrent model'\''s prompt, for chats]:N:' \
            '*--ctx-checkpoints=[states kept of a recurrent model'\''s prompt, for chats]:N:' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            '*--act=[format of activations in matrix products; nvfp4 reproduces the numerics of W4A4, fp8 is for FP4 weights on Hopper]:FORMAT:(auto f32 bf16 int8 nvfp4 fp8)' \
            '*--act-policy=[--act nvfp4\: how the scale of a block is chosen\: amax6 is the usual rule, four-six also tries amax/4, search also tries the neighbouring codes]:NAME:(search amax6 four-six)' \
            '*--emulate=[GPU\: run what Blackwell cards (sm_120) run; general\: every kernel but the products of FP4 tensor cores; fp4\: those, too, on Hopper with --act nvfp4, the instruction made of others\: slow, to check them]:WHAT:(none general fp4)' \
            '*--delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--no-delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--backend=[what computes\: auto (a GPU where there is one), cpu, cuda, CUDA1, or reference, which is slow and exact]:NAME:(auto cpu cuda reference)' \
            '*-dev[CUDA0, CUDA1, ... as CUDA_VISIBLE_DEVICES leaves them, or none]:NAME:' \
            '*--device=[CUDA0, CUDA1, ... as CUDA_VISIBLE_DEVICES leaves them, or none]:NAME:' \
            '*--isa=[CPU kernels at most this new; default\: the best]:NAME:(scalar neon avx2 avx512 amx)' \
            '*-fa[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*--flash-attn=[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*-lm[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*--load-mode=[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*-ngl[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--gpu-layers=[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--n-gpu-layers=[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--no-poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--synchronous[GPU\: wait after every kernel, so that a fault names the right one]' \
            '*--no-synchronous[GPU\: wait after every kernel, so that a fault names the right one]' \
            '*-co[colour the prompt and the input]:WHEN:(auto on off)' \
            '*--color=[colour the prompt and the input]:WHEN:(auto on off)' \
            '*--perf[a line of speeds after each answer]' \
            '*--no-perf[a line of speeds after each answer]' \
            '*-v[say what was loaded and how memory is used]' \
            '*--verbose[say what was loaded and how memory is used]' \
            '::MODEL:_files' \
            '::PROMPT:_files' ;;
    bench)
        _arguments -S '--help[show the flags]' \
            '*-m[models, comma-separated]:FILE:_files' \
            '*--model=[models, comma-separated]:FILE:_files' \
            '*--synth=[random models made in memory, such as llama\:1b\:nvfp4]:ARCH\:SHAPE\:TYPE:' \
            '*-p[tokens of a prompt; 0\: no such test]:N:' \
            '*--n-prompt=[tokens of a prompt; 0\: no such test]:N:' \
            '*-n[tokens to generate; 0\: no such test]:N:' \
            '*--n-gen=[tokens to generate; 0\: no such test]:N:' \
            '*-pg[a prompt of P tokens, then N generated ones]:P,N:' \
            '*-d[tokens that are in the context beforehand]:N:' \
            '*--n-depth=[tokens that are in the context beforehand]:N:' \
            '*-r[how often each test runs]:N:' \
            '*--repetitions=[how often each test runs]:N:' \
            '*--delay=[pause between tests]:SECONDS:' \
            '*--warmup[an unmeasured run before each test]' \
            '*--no-warmup[an unmeasured run before each test]' \
            '*-b[most tokens that are submitted at a time]:N:' \
            '*--batch-size=[most tokens that are submitted at a time]:N:' \
            '*-ub[most tokens of one forward pass]:N:' \
            '*--ubatch-size=[most tokens of one forward pass]:N:' \
            '*-ctk[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-k=[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-ctv[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-v=[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            '*-fa[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*--flash-attn=[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*-lm[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*--load-mode=[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*--act=[format of activations in matrix products]:FORMAT:(auto f32 bf16 int8 nvfp4 fp8)' \
            '*--emulate=[GPU\: run what Blackwell cards (sm_120) run; general\: every kernel but the products of FP4 tensor cores; fp4\: those, too, on Hopper with --act nvfp4, the instruction made of others\: slow, to check them]:WHAT:(none general fp4)' \
            '*--act-policy=[--act nvfp4\: how the scale of a block is chosen\: amax6 is the usual rule, four-six also tries amax/4, search also tries the neighbouring codes]:NAME:(search amax6 four-six)' \
            '*--delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--no-delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--backend=[what computes\: auto (a GPU where there is one), cpu, cuda, CUDA1, or reference, which is slow and exact]:NAME:(auto cpu cuda reference)' \
            '*--isa=[CPU kernels at most this new; default\: the best]:NAME:(scalar neon avx2 avx512 amx)' \
            '*-ngl[layers on the GPU\: -1 or many for all, 0 for the CPU]:N:' \
            '*--n-gpu-layers=[layers on the GPU\: -1 or many for all, 0 for the CPU]:N:' \
            '*-o[what to print on stdout]:FORMAT:(md csv json jsonl)' \
            '*--output=[what to print on stdout]:FORMAT:(md csv json jsonl)' \
            '*-oe[what to print on stderr]:FORMAT:(md csv json jsonl none)' \
            '*--output-err=[what to print on stderr]:FORMAT:(md csv json jsonl none)' \
            '*--ops[where the time goes op by op, beside the device'\''s peak, and every fallback, on stderr]' \
            '*--progress[show progress on stderr]' \
            '*-v[say what was loaded and how memory is used]' \
            '*--verbose[say what was loaded and how memory is used]' ;;
    perplexity)
        _arguments -S '--help[show the flags]' \
            '*-m[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*--model=[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*-c[tokens of context; 0\: what the model was trained with]:N:' \
            '*--ctx-size=[tokens of context; 0\: what the model was trained with]:N:' \
            '*-b[most tokens that are submitted at a time]:N:' \
            '*--batch-size=[most tokens that are submitted at a time]:N:' \
            '*-ub[most tokens of one forward pass]:N:' \
            '*--ubatch-size=[most tokens of one forward pass]:N:' \
            '*-ctk[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-k=[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-ctv[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-v=[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-f[the text]:FILE:_files' \
            '*--file=[the text]:FILE:_files' \
            '*-p[the text itself]:TEXT:' \
            '*--prompt=[the text itself]:TEXT:' \
            '*--chunks=[chunks to evaluate; -1\: all]:N:' \
            '*--ppl-stride=[step between overlapping chunks; 0\: no overlap]:N:' \
            '*--ppl-output-type=[1\: one line per chunk]:N:' \
            '*--save-all-logits=[write all logits, or with --kl-divergence read them]:FILE:_files' \
            '*--kl-divergence-base=[write all logits, or with --kl-divergence read them]:FILE:_files' \
            '*--kl-divergence[compare with the logits of --kl-divergence-base]' \
            '*--progress[show progress on stderr]' \
            '*--no-progress[show progress on stderr]' \
            '*-v[say what was loaded and how memory is used]' \
            '*--verbose[say what was loaded and how memory is used]' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            '*--act=[format of activations in matrix products; nvfp4 reproduces the numerics of W4A4, fp8 is for FP4 weights on Hopper]:FORMAT:(auto f32 bf16 int8 nvfp4 fp8)' \
            '*--act-policy=[--act nvfp4\: how the scale of a block is chosen\: amax6 is the usual rule, four-six also tries amax/4, search also tries the neighbouring codes]:NAME:(search amax6 four-six)' \
            '*--emulate=[GPU\: run what Blackwell cards (sm_120) run; general\: every kernel but the products of FP4 tensor cores; fp4\: those, too, on Hopper with --act nvfp4, the instruction made of others\: slow, to check them]:WHAT:(none general fp4)' \
            '*--delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--no-delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--backend=[what computes\: auto (a GPU where there is one), cpu, cuda, CUDA1, or reference, which is slow and exact]:NAME:(auto cpu cuda reference)' \
            '*-dev[CUDA0, CUDA1, ... as CUDA_VISIBLE_DEVICES leaves them, or none]:NAME:' \
            '*--device=[CUDA0, CUDA1, ... as CUDA_VISIBLE_DEVICES leaves them, or none]:NAME:' \
            '*--isa=[CPU kernels at most this new; default\: the best]:NAME:(scalar neon avx2 avx512 amx)' \
            '*-fa[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*--flash-attn=[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*-lm[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*--load-mode=[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*-ngl[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--gpu-layers=[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--n-gpu-layers=[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--no-poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--synchronous[GPU\: wait after every kernel, so that a fault names the right one]' \
            '*--no-synchronous[GPU\: wait after every kernel, so that a fault names the right one]' ;;
    quantize)
        _arguments -S '--help[show the flags]' \
            '*--pure[one format for every matrix]' \
            '*--allow-requantize[also from formats that are quantized already]' \
            '*--leave-output-tensor[output.weight stays as it is]' \
            '*--output-tensor-type=[format of output.weight]:TYPE:(NVFP4 MXFP4 Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K)' \
            '*--token-embedding-type=[format of token_embd.weight]:TYPE:(NVFP4 MXFP4 Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K)' \
            '*--tensor-type=[format of the tensors whose names match; may be given several times]:REGEX=TYPE:' \
            '*--scale-policy=[how the scale of an NVFP4 block is chosen\: amax6 is the usual rule, four-six also tries amax/4, search also tries the neighbouring codes]:NAME:(search amax6 four-six)' \
            '*--override-kv=[set a metadata key; types int, float, bool, str; repeatable]:KEY=TYPE\:VALUE:' \
            '*--dry-run[show what would be done and the sizes]' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            '::IN.gguf:_files' \
            '::OUT.gguf:_files' \
            '::TYPE:(NVFP4 MXFP4 MXFP4_MOE Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q4_K_M Q4_K_S Q5_K Q5_K_M Q5_K_S Q6_K COPY)' \
            '::THREADS:_files' ;;
    convert)
        _arguments -S '--help[show the flags]' \
            '*--outtype=[format of the matrices that are not quantized; auto\: as they are]:TYPE:(auto bf16 f16 f32)' \
            '*--outfile=[as OUT.gguf]:FILE:_files' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            ':FOLDER:_files' \
            '::OUT.gguf:_files' ;;
    inspect)
        _arguments -S '--help[show the flags]' \
            '*--json[as one JSON object]' \
            '*--tensors[list the tensors]' \
            '*--no-tensors[list the tensors]' \
            '*--ops[list the fused ops that the backend has kernels for]' \
            '*-m[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*--model=[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*-c[tokens of context; 0\: what the model was trained with]:N:' \
            '*--ctx-size=[tokens of context; 0\: what the model was trained with]:N:' \
            '*-b[most tokens that are submitted at a time]:N:' \
            '*--batch-size=[most tokens that are submitted at a time]:N:' \
            '*-ub[most tokens of one forward pass]:N:' \
            '*--ubatch-size=[most tokens of one forward pass]:N:' \
            '*-ctk[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-k=[format of cached keys]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-ctv[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*--cache-type-v=[format of cached values]:TYPE:(f16 f32 bf16 q8_0 fp8)' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            '*--act=[format of activations in matrix products; nvfp4 reproduces the numerics of W4A4, fp8 is for FP4 weights on Hopper]:FORMAT:(auto f32 bf16 int8 nvfp4 fp8)' \
            '*--act-policy=[--act nvfp4\: how the scale of a block is chosen\: amax6 is the usual rule, four-six also tries amax/4, search also tries the neighbouring codes]:NAME:(search amax6 four-six)' \
            '*--emulate=[GPU\: run what Blackwell cards (sm_120) run; general\: every kernel but the products of FP4 tensor cores; fp4\: those, too, on Hopper with --act nvfp4, the instruction made of others\: slow, to check them]:WHAT:(none general fp4)' \
            '*--delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--no-delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--backend=[what computes\: auto (a GPU where there is one), cpu, cuda, CUDA1, or reference, which is slow and exact]:NAME:(auto cpu cuda reference)' \
            '*-dev[CUDA0, CUDA1, ... as CUDA_VISIBLE_DEVICES leaves them, or none]:NAME:' \
            '*--device=[CUDA0, CUDA1, ... as CUDA_VISIBLE_DEVICES leaves them, or none]:NAME:' \
            '*--isa=[CPU kernels at most this new; default\: the best]:NAME:(scalar neon avx2 avx512 amx)' \
            '*-fa[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*--flash-attn=[attention never stores its scores here, so every value is the same]:MODE:(auto on off 1 0)' \
            '*-lm[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*--load-mode=[weights are mapped and repacked whatever the value]:MODE:(auto none mmap)' \
            '*-ngl[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--gpu-layers=[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--n-gpu-layers=[layers on the GPU\: auto, all, or 0 for the CPU]:N:' \
            '*--poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--no-poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--synchronous[GPU\: wait after every kernel, so that a fault names the right one]' \
            '*--no-synchronous[GPU\: wait after every kernel, so that a fault names the right one]' \
            '::MODEL:_files' ;;
    tokenize)
        _arguments -S '--help[show the flags]' \
            '*-m[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*--model=[GGUF file, or folder of a Hugging Face model]:FILE:_files' \
            '*-p[the text]:TEXT:' \
            '*--prompt=[the text]:TEXT:' \
            '*-f[read the text from a file]:FILE:_files' \
            '*--file=[read the text from a file]:FILE:_files' \
            '*--stdin[read the text from stdin]' \
            '*--ids[only ids, as \[1, 2, 3\]]' \
            '*--no-bos[no start token, even if the model wants one]' \
            '*--no-parse-special[control tokens in the text are plain text]' \
            '*--show-count[print the number of tokens]' ;;
    synth)
        _arguments -S '--help[show the flags]' \
            '*--type=[format of the matrices]:TYPE:(NVFP4 MXFP4 Q8_0 BF16 F16 F32 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K)' \
            '*-s[of the random numbers]:N:' \
            '*--seed=[of the random numbers]:N:' \
            '*--vocab-from=[take the tokenizer of this model instead of one token per byte]:FILE:_files' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            ':ARCH:(llama qwen2 qwen3 qwen3moe qwen35 qwen35moe)' \
            ':SHAPE:(tiny 135m 1b 8b qwen3-30b-a3b 0.8b qwen3.5-27b qwen3.6-35b-a3b)' \
            ':OUT.gguf:_files' ;;
    test-ops)
        _arguments -S '--help[show the flags]' \
            '*-o[only this op, such as MUL_MAT]:OP:' \
            '*--op=[only this op, such as MUL_MAT]:OP:' \
            '*-p[only cases whose names match]:REGEX:' \
            '*--params=[only cases whose names match]:REGEX:' \
            '*-b[what to check\: cpu, cuda, CUDA1, ...]:NAME:(auto cpu cuda reference)' \
            '*--backend=[what to check\: cpu, cuda, CUDA1, ...]:NAME:(auto cpu cuda reference)' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            '*--act=[format of activations in matrix products; nvfp4 reproduces the numerics of W4A4, fp8 is for FP4 weights on Hopper]:FORMAT:(auto f32 bf16 int8 nvfp4 fp8)' \
            '*--act-policy=[--act nvfp4\: how the scale of a block is chosen\: amax6 is the usual rule, four-six also tries amax/4, search also tries the neighbouring codes]:NAME:(search amax6 four-six)' \
            '*--emulate=[GPU\: run what Blackwell cards (sm_120) run; general\: every kernel but the products of FP4 tensor cores; fp4\: those, too, on Hopper with --act nvfp4, the instruction made of others\: slow, to check them]:WHAT:(none general fp4)' \
            '*--delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--no-delta-bf16[GPU\: prompts run the gated delta rule on bf16 operands, an eighth as precise as f16, for models with values over 65504]' \
            '*--isa=[CPU kernels at most this new; default\: the best]:NAME:(scalar neon avx2 avx512 amx)' \
            '*--poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--no-poison[GPU\: fill fresh memory with 0xFF, which shows reads of unwritten memory]' \
            '*--synchronous[GPU\: wait after every kernel, so that a fault names the right one]' \
            '*--no-synchronous[GPU\: wait after every kernel, so that a fault names the right one]' \
            '*--output=[what to print on stdout]:FORMAT:(console csv jsonl)' \
            '::test|perf|support:(test perf support)' ;;
    doctor)
        _arguments -S '--help[show the flags]' \
            '*-b[what to check\: cpu, cuda, CUDA1, ...]:NAME:(auto cpu cuda reference)' \
            '*--backend=[what to check\: cpu, cuda, CUDA1, ...]:NAME:(auto cpu cuda reference)' \
            '*--quick[every tenth case of each op]' \
            '*--emulate=[GPU\: run what Blackwell cards (sm_120) run; general\: every kernel but the products of FP4 tensor cores; fp4\: those, too, on Hopper with --act nvfp4, the instruction made of others\: slow, to check them]:WHAT:(none general fp4)' \
            '*-t[threads of the CPU]:N:' \
            '*--threads=[threads of the CPU]:N:' \
            '*--isa=[CPU kernels at most this new; default\: the best]:NAME:(scalar neon avx2 avx512 amx)' ;;
    help)
        _arguments --man --markdown '::command:(run bench perplexity quantize convert inspect tokenize synth test-ops doctor help)' ;;
    --completion)
        compadd bash zsh fish ;;
    esac
}
if [ "$funcstack[1]" = _tessera ]; then
    _tessera "$@"
else
    compdef _tessera tessera
fi
