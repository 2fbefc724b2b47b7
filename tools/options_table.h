#pragma once
// All subcommands with their options, bound to one set of structs.

#include <string>
#include <vector>

#include "tools/bench.h"
#include "tools/convert.h"
#include "tools/doctor.h"
#include "tools/inspect.h"
#include "tools/options.h"
#include "tools/perplexity.h"
#include "tools/quantize.h"
#include "tools/run.h"
#include "tools/synth.h"
#include "tools/test_ops.h"
#include "tools/tokenize.h"

namespace tessera {

struct HelpOptions {
    std::string topic;  ///< a command, or nothing
    bool man = false;
    bool markdown = false;
};

/// Where the rows write. `notes` are lines for stderr once parsing is done.
struct AllOptions {
    RunOptions run;
    BenchOptions bench;
    PerplexityOptions perplexity;
    QuantizeOptions quantize;
    ConvertOptions convert;
    InspectOptions inspect;
    TokenizeOptions tokenize;
    SynthOptions synth;
    TestOpsOptions test_ops;
    DoctorOptions doctor;
    HelpOptions help;

    std::vector<std::string> notes;
    bool escape = true;                  ///< run: process \n and the like in texts
    bool model_flag = false;             ///< run: -m was on the command line
    std::vector<std::string> arguments;  ///< positionals whose meaning depends on their number
};

/// The table. The rows point into `all`, which must outlive them and not move.
std::vector<Command> describe_commands(AllOptions& all);

// One function per command, gathered by describe_commands().
Command run_command(AllOptions& all);
Command perplexity_command(AllOptions& all);
Command bench_command(AllOptions& all);
Command test_ops_command(AllOptions& all);
Command doctor_command(AllOptions& all);
Command quantize_command(AllOptions& all);
Command convert_command(AllOptions& all);
Command inspect_command(AllOptions& all);
Command tokenize_command(AllOptions& all);
Command synth_command(AllOptions& all);

// Rows that several commands share.
std::vector<Option> context_rows(EngineOptions& engine);
std::vector<Option> machine_rows(EngineOptions& engine);
Option threads_row(int32_t& threads);
Option act_row(ActPolicy& act);
/// What Blackwell cards do, on this one.
Option emulate_row(Emulation& emulate);
Option act_policy_row(Nvfp4Policy& policy);
Option delta_row(bool& bf16);
const NamedValues<DType>& cache_types();
/// The name that -ctk knows.
std::string cache_type_name(DType type);
const NamedValues<ActPolicy>& act_policies();
const NamedValues<Emulation>& emulations();
const NamedValues<Nvfp4Policy>& scale_policies();
/// Faults of kernels: --poison, --synchronous.
std::vector<Option> device_debug_rows(BackendOptions& backend);
/// "auto", "cpu", "reference", "cuda" or "cuda" with a number.
Option backend_row(const Row& row, std::string& target);
Option isa_row(std::string& isa);
/// A choice among names that stay names.
Option name_row(const Row& row, std::string& target, const std::vector<std::string>& known);
/// Formats of single tensors and of synthetic models, by name.
NamedValues<DType> format_names(std::span<const DType> formats);
/// Remembers a positional argument; its command's check() gives it a meaning.
Positional argument_row(AllOptions& all, std::string name, std::string help);
/// UserError(kUsage) when no model was named.
void require_model(const std::string& command, const std::string& path);

}  // namespace tessera
