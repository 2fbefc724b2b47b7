// Flags of llama.cpp that tessera does not have. They are refused by name, never ignored: a flag
// without effect is worse than an error.

#include <algorithm>
#include <array>

#include "tools/options.h"

namespace tessera {
namespace {

struct ForeignFlags {
    std::string_view flags;  ///< flags or commands, separated by blanks
    std::string_view hint;
};

constexpr std::array kForeign{
    ForeignFlags{"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr "
                 "--docker-repo --offline -cl --cache-list --no-mmproj",
                 "download the file first and name it with -m"},
    ForeignFlags{"--mmap --no-mmap --mlock -dio --direct-io -ndio --no-direct-io",
                 "use -lm mmap or -lm none; weights are repacked when they are loaded"},
    ForeignFlags{"-tb --threads-batch", "-t holds for prompts and for generation"},
    ForeignFlags{"-C --cpu-mask -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch -Crb "
                 "--cpu-range-batch --cpu-strict-batch --prio --prio-batch --poll --poll-batch "
                 "--numa",
                 "use taskset, numactl or nice"},
    ForeignFlags{"-sm --split-mode -mg --main-gpu -ts --tensor-split -dev --device "
                 "--list-devices -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -ncffn "
                 "--n-cpu-ffn --rpc -kvo --kv-offload -nkvo --no-kv-offload --no-host "
                 "--op-offload --no-op-offload -nopo -fit --fit -fitt --fit-target -fitc --fit-ctx",
                 "this build runs on the CPU"},
    ForeignFlags{"--repack --no-repack -nr", "weights are always repacked"},
    ForeignFlags{"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
                 "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
                 "the model file decides; change a copy with 'tessera quantize IN OUT COPY "
                 "--override-kv'"},
    ForeignFlags{"--override-kv --check-tensors",
                 "change a copy with 'tessera quantize IN OUT COPY --override-kv'"},
    ForeignFlags{"--mirostat --mirostat-lr --mirostat-ent --dry-multiplier --dry-base "
                 "--dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker "
                 "--xtc-probability --xtc-threshold --typical --typical-p --top-nsigma "
                 "--top-n-sigma --dynatemp-range --dynatemp-exp --adaptive-target "
                 "--adaptive-decay --samplers --sampler-seq --sampling-seq -l --logit-bias -bs "
                 "--backend-sampling",
                 "samplers are penalties, --top-k, --top-p, --min-p and --temp, in this order"},
    ForeignFlags{"--grammar --grammar-file -j --json-schema -jf --json-schema-file",
                 "answers cannot be constrained yet"},
    ForeignFlags{"--lora --lora-scaled --control-vector --control-vector-scaled "
                 "--control-vector-layer-range",
                 "merge adapters into the model file first"},
    ForeignFlags{"-md --model-draft --spec-draft-n-min --draft --draft-min "
                 "--draft-n --draft-n-min --draft-p-split -td --threads-draft -ngld "
                 "--gpu-layers-draft --n-gpu-layers-draft --mtp --eagle3 --spec-default -lcs "
                 "--lookup-cache-static -lcd --lookup-cache-dynamic "
                 "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd "
                 "--cache-type-v-draft",
                 "drafting is done by the model's own block: --spec-type draft-mtp"},
    ForeignFlags{"-i --interactive -if --interactive-first -mli --multiline-input --in-prefix "
                 "--in-suffix --in-prefix-bos --simple-io",
                 "use -cnv for a chat"},
    ForeignFlags{"--prompt-cache --prompt-cache-all --prompt-cache-ro --keep --context-shift "
                 "--no-context-shift --swa-full -gan --grp-attn-n -gaw --grp-attn-w -dt "
                 "--defrag-thold",
                 "a full context ends the answer; raise -c"},
    ForeignFlags{"-np --parallel -kvu --kv-unified -no-kvu --no-kv-unified",
                 "one sequence at a time"},
    ForeignFlags{"--reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget "
                 "--reasoning-budget-message --reasoning-preserve --no-jinja "
                 "--skip-chat-parsing --no-skip-chat-parsing --no-reasoning-preserve",
                 "set the template's own variables with --chat-template-kwargs"},
    ForeignFlags{"--log-disable --log-file --log-jsonl --log-colors -lv --verbosity "
                 "--log-verbosity --log-verbose --log-prefix --log-timestamps --no-log-jsonl "
                 "--no-log-prefix "
                 "--no-log-timestamps -ptc "
                 "--print-token-count",
                 "redirect stderr; -v says more"},
    ForeignFlags{"--imatrix --include-weights --exclude-weights",
                 "there are no importance matrices; --scale-policy search fits NVFP4 scales"},
    ForeignFlags{"--tensor-type-file --prune-layers --keep-split --max-buffer-size",
                 "use --tensor-type; shards are joined, memory is bounded by itself"},
    ForeignFlags{"--hellaswag --hellaswag-tasks --winogrande --winogrande-tasks --multiple-choice "
                 "--multiple-choice-tasks",
                 "only perplexity and KL divergence are computed"},
    ForeignFlags{"-bf --binary-file", "use -f; bytes are taken as they are"},
    ForeignFlags{"-embd --embeddings -lzm --lazy-mode", "there is nothing like it"},
    ForeignFlags{
        "--host --port --reuse-port --api-key --api-key-file --api-prefix --path -a --alias "
        "--metrics --props --slots --no-slots --slot-save-path -to --timeout "
        "--threads-http -cb --cont-batching -nocb --no-cont-batching --cache-prompt "
        "--no-cache-prompt --cache-reuse -cram --cache-ram "
        "--ssl-key-file --ssl-cert-file --embedding --rerank --reranking --webui "
        "--no-webui --ui --no-ui --models-dir",
        "there is no server yet"},
    ForeignFlags{"-mm --mmproj --mmproj-url --image --audio --video", "only text is read"},
    ForeignFlags{"--version", "use 'tessera --version'"},
    ForeignFlags{"--completion-bash", "use 'tessera --completion bash'"},
};

constexpr std::array kForeignCommands{
    ForeignFlags{"cli completion chat main llama llama-cli llama-completion llama-run",
                 "did you mean 'run'?"},
    ForeignFlags{"llama-bench", "did you mean 'bench'?"},
    ForeignFlags{"llama-perplexity", "did you mean 'perplexity'?"},
    ForeignFlags{"llama-quantize", "did you mean 'quantize'?"},
    ForeignFlags{
        "convert_hf_to_gguf convert_hf_to_gguf.py convert-hf-to-gguf llama-gguf-split gguf-split",
        "did you mean 'convert'?"},
    ForeignFlags{"gguf-dump gguf_dump show llama-gguf", "did you mean 'inspect'?"},
    ForeignFlags{"llama-tokenize", "did you mean 'tokenize'?"},
    ForeignFlags{"test-backend-ops", "did you mean 'test-ops'?"},
    ForeignFlags{"serve server llama-server", "there is no server yet"},
    ForeignFlags{"pull get download", "download the file first and name it with 'run -m FILE'"},
};

bool lists(std::string_view flags, std::string_view flag) {
    while (!flags.empty()) {
        const size_t end = std::min(flags.find(' '), flags.size());
        if (flags.substr(0, end) == flag) return true;
        flags.remove_prefix(std::min(end + 1, flags.size()));
    }
    return false;
}

}  // namespace

std::optional<std::string_view> foreign_flag_hint(std::string_view flag) {
    for (const ForeignFlags& row : kForeign)
        if (lists(row.flags, flag)) return row.hint;
    return {};
}

std::optional<std::string_view> foreign_command_hint(std::string_view name) {
    for (const ForeignFlags& row : kForeignCommands)
        if (lists(row.flags, name)) return row.hint;
    return {};
}

}  // namespace tessera
