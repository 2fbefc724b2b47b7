// The output formats of `tessera bench`.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "tools/bench_result.h"
#include "tools/options_table.h"

namespace tessera {
namespace {

enum class Kind : uint8_t { kText, kSwitch, kInteger, kReal };

struct Field {
    std::string_view name;
    Kind kind;
    std::string value;  ///< switches are "0" or "1"
};

/// As it was asked for, and what became of that: "auto (bf16)".
std::string act_text(const BenchResult& r) {
    const std::string asked = name_of(act_policies(), r.test.act);
    const std::string_view taken = act_name(r.act_prompt);
    return asked == taken ? asked : fmt::format("{} ({})", asked, taken);
}

std::string policy_text(const BenchResult& r) {
    return r.act_policy ? name_of(scale_policies(), *r.act_policy) : "none";
}

/// Fields of csv and json. Those of llama-bench that mean nothing here carry its defaults.
std::vector<Field> fields_of(const BenchResult& r) {
    const auto integer = [](int64_t value) { return std::to_string(value); };
    const auto real = [](double value) { return fmt::format("{:.6f}", value); };
    std::vector<double> nanoseconds(r.samples_ns.begin(), r.samples_ns.end());
    const std::vector<double> rates = samples_ts(r);
    const BenchTest& t = r.test;
    const Fallbacks fallbacks = fallbacks_of(r.ops);
    const auto peak = [&](Operands operands) {
        return real(r.ops.ceilings.flops_per_second[static_cast<size_t>(operands)] / 1e12);
    };
    return {
        {"build_commit", Kind::kText, r.build_commit},
        {"build_number", Kind::kInteger, integer(r.build_number)},
        {"cpu_info", Kind::kText, r.cpu_info},
        {"gpu_info", Kind::kText, ""},
        {"backends", Kind::kText, r.backend},
        {"model_filename", Kind::kText, r.model_filename},
        {"model_type", Kind::kText, r.model_type},
        {"model_size", Kind::kInteger, integer(r.model_bytes)},
        {"model_n_params", Kind::kInteger, integer(r.model_parameters)},
        {"n_batch", Kind::kInteger, integer(t.batch)},
        {"n_ubatch", Kind::kInteger, integer(t.ubatch)},
        {"n_threads", Kind::kInteger, integer(t.threads)},
        {"cpu_mask", Kind::kText, "0x0"},
        {"cpu_strict", Kind::kSwitch, "0"},
        {"poll", Kind::kInteger, "50"},
        {"type_k", Kind::kText, cache_type_name(t.type_k)},
        {"type_v", Kind::kText, cache_type_name(t.type_v)},
        {"n_gpu_layers", Kind::kInteger, integer(t.gpu_layers)},
        {"n_cpu_moe", Kind::kInteger, "0"},
        {"split_mode", Kind::kText, "layer"},
        {"main_gpu", Kind::kInteger, "0"},
        {"no_kv_offload", Kind::kSwitch, "0"},
        {"flash_attn", Kind::kInteger, integer(t.flash_attn)},
        {"devices", Kind::kText, "auto"},
        {"tensor_split", Kind::kText, "0.00"},
        {"tensor_buft_overrides", Kind::kText, "none"},
        {"load_mode", Kind::kText, t.load_mode},
        {"lazy_mode", Kind::kText, "auto"},
        {"embeddings", Kind::kSwitch, "0"},
        {"no_op_offload", Kind::kInteger, "0"},
        {"no_host", Kind::kSwitch, "0"},
        {"repack", Kind::kSwitch, "1"},
        {"fit_target", Kind::kInteger, "0"},
        {"fit_min_ctx", Kind::kInteger, "0"},
        {"n_prompt", Kind::kInteger, integer(t.n_prompt)},
        {"n_gen", Kind::kInteger, integer(t.n_gen)},
        {"n_depth", Kind::kInteger, integer(t.n_depth)},
        {"test_time", Kind::kText, r.test_time},
        {"avg_ns", Kind::kInteger, integer(static_cast<int64_t>(mean(nanoseconds)))},
        {"stddev_ns", Kind::kInteger, integer(static_cast<int64_t>(sample_deviation(nanoseconds)))},
        {"avg_ts", Kind::kReal, real(mean(rates))},
        {"stddev_ts", Kind::kReal, real(sample_deviation(rates))},
        {"act", Kind::kText, name_of(act_policies(), t.act)},
        {"act_prompt", Kind::kText, std::string(act_name(r.act_prompt))},
        {"act_policy", Kind::kText, policy_text(r)},
        {"delta_bf16", Kind::kSwitch, t.delta_bf16 ? "1" : "0"},
        {"emulate", Kind::kText, name_of(emulations(), t.emulate)},
        {"peak_memory_bytes", Kind::kInteger, integer(r.peak_bytes)},
        {"peak_f32_tflops", Kind::kReal, peak(Operands::kF32)},
        {"peak_bf16_tflops", Kind::kReal, peak(Operands::k16Bits)},
        {"peak_int8_tflops", Kind::kReal, peak(Operands::kInt8)},
        {"peak_fp8_tflops", Kind::kReal, peak(Operands::kFp8)},
        {"peak_gb_per_s", Kind::kReal, real(r.ops.ceilings.bytes_per_second / 1e9)},
        {"fallback_calls", Kind::kInteger, integer(fallbacks.calls)},
        {"fallback_share", Kind::kReal, real(fallbacks.share)}};
}

std::string json_value(const Field& field) {
    switch (field.kind) {
        case Kind::kText:
            return nlohmann::json(field.value)
                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        case Kind::kSwitch:
            return field.value == "0" ? "false" : "true";
        case Kind::kInteger:
        case Kind::kReal:
            break;
    }
    return field.value;
}

template <class Value>
std::string joined(const std::vector<Value>& values) {
    std::string text;
    for (const Value& value : values) {
        if (!text.empty()) text += ", ";
        text += fmt::format("{}", value);
    }
    return text;
}

class CsvPrinter : public BenchPrinter {
  public:
    explicit CsvPrinter(std::FILE* file) : file_(file) {}
    void begin(const BenchOptions&) override {
        std::string line;
        for (const Field& field : fields_of({}))
            line += (line.empty() ? "" : ",") + std::string(field.name);
        fmt::print(file_, "{}\n", line);
    }
    void print(const BenchResult& result) override {
        std::string line;
        for (const Field& field : fields_of(result)) {
            line += line.empty() ? "\"" : ",\"";
            for (const char letter : field.value)
                line += letter == '"' ? std::string("\"\"") : std::string(1, letter);
            line += '"';
        }
        fmt::print(file_, "{}\n", line);
    }
    void end(const BenchResult*) override {}

  private:
    std::FILE* file_;
};

/// An array of objects, or with `lines` one object a line.
class JsonPrinter : public BenchPrinter {
  public:
    JsonPrinter(std::FILE* file, bool lines) : file_(file), lines_(lines) {}
    void begin(const BenchOptions&) override {
        if (!lines_) fmt::print(file_, "[\n");
    }
    void print(const BenchResult& result) override {
        const std::string_view indent = lines_ ? "" : "    ";
        const std::string_view next = lines_ ? ", " : ",\n";
        if (!lines_) fmt::print(file_, "{}  {{\n", first_ ? "" : ",\n");
        if (lines_) fmt::print(file_, "{{");
        for (const Field& field : fields_of(result))
            fmt::print(file_, "{}\"{}\": {}{}", indent, field.name, json_value(field), next);
        fmt::print(file_, "{}\"samples_ns\": [ {} ]{}", indent, joined(result.samples_ns), next);
        fmt::print(file_, "{}\"samples_ts\": [ {} ]{}", indent, joined(samples_ts(result)), next);
        fmt::print(file_, "{}\"ops\": {}", indent, ops_json(result.ops));
        fmt::print(file_, "{}", lines_ ? "}\n" : "\n  }");
        first_ = false;
    }
    void end(const BenchResult*) override {
        if (!lines_) fmt::print(file_, "\n]\n");
    }

  private:
    std::FILE* file_;
    bool lines_;
    bool first_ = true;
};

/// A column of the markdown table; negative widths are left-aligned.
struct Column {
    std::string title;
    int width;
    std::string (*value)(const BenchResult&);
};

std::string size_text(const BenchResult& r) {
    const double mib = static_cast<double>(r.model_bytes) / (1024.0 * 1024.0);
    return mib < 1024 ? fmt::format("{:.2f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

std::string parameters_text(const BenchResult& r) {
    const double millions = static_cast<double>(r.model_parameters) / 1e6;
    return millions < 1000 ? fmt::format("{:.2f} M", millions)
                           : fmt::format("{:.2f} B", millions / 1000);
}

std::string rate_text(const BenchResult& r) {
    const std::vector<double> rates = samples_ts(r);
    return fmt::format("{:.2f} ± {:.2f}", mean(rates), sample_deviation(rates));
}

/// A column appears when its list was given, that is when it differs from the default.
std::vector<Column> columns_for(const BenchOptions& given) {
    using R = BenchResult;
    const BenchOptions usual;
    std::vector<Column> columns{{"model", -30, [](const R& r) { return r.model_type; }},
                                {"size", 10, size_text},
                                {"params", 10, parameters_text},
                                {"backend", -10, [](const R& r) { return r.backend; }}};
    if (given.gpu_layers != usual.gpu_layers)
        columns.push_back({"ngl", 3, [](const R& r) { return std::to_string(r.test.gpu_layers); }});
    columns.push_back({"threads", 7, [](const R& r) { return std::to_string(r.test.threads); }});
    if (given.batch != usual.batch)
        columns.push_back({"n_batch", 7, [](const R& r) { return std::to_string(r.test.batch); }});
    if (given.ubatch != usual.ubatch)
        columns.push_back(
            {"n_ubatch", 8, [](const R& r) { return std::to_string(r.test.ubatch); }});
    if (given.type_k != usual.type_k)
        columns.push_back({"type_k", 6, [](const R& r) { return cache_type_name(r.test.type_k); }});
    if (given.type_v != usual.type_v)
        columns.push_back({"type_v", 6, [](const R& r) { return cache_type_name(r.test.type_v); }});
    if (given.flash_attn != usual.flash_attn)
        columns.push_back({"fa", 3, [](const R& r) { return std::to_string(r.test.flash_attn); }});
    if (given.load_mode != usual.load_mode)
        columns.push_back({"lm", 10, [](const R& r) { return r.test.load_mode; }});
    if (given.act != usual.act) columns.push_back({"act", 12, act_text});
    if (given.act_nvfp4 != usual.act_nvfp4) columns.push_back({"act_policy", 10, policy_text});
    if (given.delta_bf16 != usual.delta_bf16)
        columns.push_back({"delta_bf16", 10,
                           [](const R& r) { return std::string(r.test.delta_bf16 ? "1" : "0"); }});
    if (given.emulate != usual.emulate)
        columns.push_back(
            {"emulate", 7, [](const R& r) { return name_of(emulations(), r.test.emulate); }});
    columns.push_back({"test", 15, [](const R& r) { return test_name(r.test); }});
    columns.push_back({"t/s", 20, rate_text});
    return columns;
}

class MarkdownPrinter : public BenchPrinter {
  public:
    explicit MarkdownPrinter(std::FILE* file) : file_(file) {}
    void begin(const BenchOptions& options) override {
        columns_ = columns_for(options);
        std::string titles = "|";
        std::string rule = "|";
        for (const Column& column : columns_) {
            titles += cell(column, column.title);
            rule += " " + std::string(static_cast<size_t>(std::abs(column.width)) - 1, '-') +
                    (column.width > 0 ? ":" : "-") + " |";
        }
        fmt::print(file_, "{}\n{}\n", titles, rule);
    }
    void print(const BenchResult& result) override {
        std::string line = "|";
        for (const Column& column : columns_) line += cell(column, column.value(result));
        fmt::print(file_, "{}\n", line);
        const std::string act = act_text(result);
        if (std::ranges::find(acts_, act) == acts_.end()) acts_.push_back(act);
    }
    void end(const BenchResult* last) override {
        if (last == nullptr) return;
        fmt::print(file_, "\nbuild: {} ({})\npeak memory: {:.2f} MiB\n", last->build_commit,
                   last->build_number, static_cast<double>(last->peak_bytes) / (1024.0 * 1024.0));
        const auto is_act = [](const Column& column) { return column.title == "act"; };
        if (std::ranges::none_of(columns_, is_act))
            fmt::print(file_, "activations of prompts: {}\n", joined(acts_));
    }

  private:
    // fmt counts columns, not bytes, so that "±" needs no correction.
    static std::string cell(const Column& column, const std::string& text) {
        return column.width < 0 ? fmt::format(" {:<{}} |", text, -column.width)
                                : fmt::format(" {:>{}} |", text, column.width);
    }
    std::FILE* file_;
    std::vector<Column> columns_;
    std::vector<std::string> acts_;  ///< of the results so far
};

}  // namespace

std::string_view act_name(ActFormat act) {
    switch (act) {
        case ActFormat::kF32:
            return "f32";
        case ActFormat::kBF16:
            return "bf16";
        case ActFormat::kInt8:
            return "int8";
        case ActFormat::kNvfp4:
        case ActFormat::kFp4:
            return "nvfp4";
        case ActFormat::kFp8:
            return "fp8";
    }
    return "?";
}

std::unique_ptr<BenchPrinter> make_bench_printer(BenchOutput output, std::FILE* file) {
    switch (output) {
        case BenchOutput::kNone:
            return nullptr;
        case BenchOutput::kMarkdown:
            return std::make_unique<MarkdownPrinter>(file);
        case BenchOutput::kCsv:
            return std::make_unique<CsvPrinter>(file);
        case BenchOutput::kJson:
            return std::make_unique<JsonPrinter>(file, /*lines=*/false);
        case BenchOutput::kJsonl:
            return std::make_unique<JsonPrinter>(file, /*lines=*/true);
    }
    return nullptr;
}

}  // namespace tessera
