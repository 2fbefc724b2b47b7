// The parts of the CPU backend that belong to no family of ops: choice of the instruction set,
// memory, counters.
#include "backends/cpu/cpu_ops.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "backends/cpu/cpu_linear.h"
#include "backends/cpu/isa/rows_kernels.h"
#include "core/error.h"

#if defined(__x86_64__)
#    include <cpuid.h>
#    include <sys/syscall.h>
#    include <unistd.h>
#endif

namespace tessera::cpu {
namespace {

#if defined(__x86_64__)

struct CpuidRegisters {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidRegisters cpuid(uint32_t leaf, uint32_t subleaf) {
    CpuidRegisters out;
    if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) return {};
    return out;
}

/// XCR0: which register states the operating system saves. Only valid with OSXSAVE.
uint64_t saved_states() {
    uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
}

constexpr bool all_set(uint64_t value, uint64_t bits) {
    return (value & bits) == bits;
}

/// Linux gives a process the 8 KiB of tile state only when asked (Documentation/arch/x86/xstate):
/// ARCH_REQ_XCOMP_PERM for XTILEDATA. The permission is the process's: all its threads have it.
bool request_tiles() {
    constexpr long kRequestPermission = 0x1023;
    constexpr long kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// The best set that hardware and kernel offer up to `at_most`; bits as in the Intel SDM, CPUID.
Isa available(Isa at_most) {
    constexpr uint64_t kFmaF16cOsxsaveAvx = (1u << 12) | (1u << 29) | (1u << 27) | (1u << 28);
    constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xe6, kTileState = 0x60000;
    constexpr uint64_t kAvx2Bit = 1u << 5;
    constexpr uint64_t kAvx512Bits = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);
    constexpr uint64_t kVbmiVnni = (1u << 1) | (1u << 11);
    constexpr uint64_t kAmxBf16TileInt8 = (1u << 22) | (1u << 24) | (1u << 25);
    constexpr uint64_t kAvx512Bf16 = 1u << 5;

    if (at_most < Isa::kAvx2 || !all_set(cpuid(1, 0).ecx, kFmaF16cOsxsaveAvx)) return Isa::kScalar;
    const uint64_t states = saved_states();
    const CpuidRegisters leaf7 = cpuid(7, 0);
    if (!all_set(states, kAvxState) || !all_set(leaf7.ebx, kAvx2Bit)) return Isa::kScalar;
    if (at_most < Isa::kAvx512 || !all_set(states, kAvx512State) ||
        !all_set(leaf7.ebx, kAvx512Bits) || !all_set(leaf7.ecx, kVbmiVnni))
        return Isa::kAvx2;
    if (at_most < Isa::kAmx || !all_set(states, kTileState) ||
        !all_set(leaf7.edx, kAmxBf16TileInt8) || !all_set(cpuid(7, 1).eax, kAvx512Bf16) ||
        !request_tiles())
        return Isa::kAvx512;
    return Isa::kAmx;
}

constexpr Isa kBuilt[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

#elif defined(__aarch64__)

Isa available(Isa at_most) {
    return at_most;  // NEON is part of the base architecture
}
constexpr Isa kBuilt[] = {Isa::kScalar, Isa::kNeon};

#else

Isa available(Isa) {
    return Isa::kScalar;
}
constexpr Isa kBuilt[] = {Isa::kScalar};

#endif

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;

}  // namespace

Isa pick_isa(std::string_view at_most) {
    if (at_most.empty()) return available(std::end(kBuilt)[-1]);
    std::string known;
    for (const Isa isa : kBuilt) {
        if (isa_name(isa) == at_most) return available(isa);
        known += known.empty() ? "" : ", ";
        known += isa_name(isa);
    }
    throw UserError(ExitCode::kUsage, "unknown instruction set '" + std::string(at_most) +
                                          "': this program knows " + known);
}

std::string_view isa_name(Isa isa) {
    switch (isa) {
        case Isa::kScalar:
            return "scalar";
        case Isa::kNeon:
            return "neon";
        case Isa::kAvx2:
            return "avx2";
        case Isa::kAvx512:
            return "avx512";
        case Isa::kAmx:
            return "amx";
    }
    fail_check("isa_name: not an instruction set", std::source_location::current());
}

CpuOps::CpuOps(const CpuOptions& options)
    : pool_(options.threads),
      isa_(pick_isa(options.isa)),
      linear_(std::make_unique<Linear>(isa_, options)),
      rows_(std::make_unique<Rows>(isa_, options)) {}

CpuOps::~CpuOps() = default;

std::string CpuOps::description() const {
    std::string text;
    switch (isa_) {
        case Isa::kScalar:
            text = "no vector instructions";
            break;
        case Isa::kNeon:
            text = "NEON";
            break;
        case Isa::kAvx2:
            text = "AVX2";
            break;
        case Isa::kAvx512:
            text = "AVX-512 VNNI";
            break;
        case Isa::kAmx:
            text = "AVX-512 VNNI, AMX-BF16";
            break;
    }
    return text + "; " + std::to_string(pool_.size()) +
           (pool_.size() == 1 ? " thread" : " threads");
}

std::vector<std::string_view> CpuOps::overrides() const {
    return {"linear_glu",         "linear_experts_glu", "rms_norm_input",
            "qk_norm_rope_store", "glu_input",          "gated_rms_norm_input"};
}

void CpuOps::FreeBlock::operator()(void* base) const {
    munmap(base, mapped_bytes);
}

/// `bytes` of a fresh mapping, aligned to huge pages: it reads as zero and costs memory only where
/// it is written, so key/value pages that no sequence uses stay free.
std::byte* CpuOps::map(size_t bytes, bool huge_pages) {
    const auto refuse = [bytes] {
        throw UserError(ExitCode::kMemory,
                        "cannot allocate " + std::to_string(bytes >> 20) + " MiB of memory");
    };
    if (bytes > SIZE_MAX - kHugePage) refuse();
    const size_t mapped = bytes + kHugePage;
    void* block = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) refuse();
    memory_.emplace_back(block, FreeBlock{mapped});
    const auto address = reinterpret_cast<uintptr_t>(block);
    const size_t skip = (kHugePage - address % kHugePage) % kHugePage;
    std::byte* base = static_cast<std::byte*>(block) + skip;
    // Only advice: where it is refused, memory is merely slower.
    if (huge_pages) madvise(base, bytes, MADV_HUGEPAGE);
    return base;
}

/// Gives back what lies behind the last block of a chunk: a huge page is there as a whole.
void CpuOps::trim(const Chunk& chunk) {
    const size_t skip = chunk.left % kPage, rest = chunk.left % kHugePage;
    if (rest > skip) madvise(chunk.next + skip, rest - skip, MADV_DONTNEED);
}

std::byte* CpuOps::carve(Chunk& chunk, size_t bytes, bool huge_pages) {
    constexpr size_t kAlignment = 64;
    constexpr size_t kChunk = 8 * kHugePage;
    if (bytes >= kHugePage) return map(bytes, true);
    const size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    // Copies ahead of loads end with a page of memory: key/value pages should be cut by few.
    const size_t skip = !huge_pages && bytes >= kPage ? chunk.left % kPage : 0;
    if (chunk.left < skip + rounded) {
        trim(chunk);
        chunk = {map(kChunk, huge_pages), kChunk};
    } else {
        chunk = {chunk.next + skip, chunk.left - skip};
    }
    std::byte* base = chunk.next;
    chunk.next += rounded;
    chunk.left -= rounded;
    return base;
}

std::byte* CpuOps::allocate(size_t bytes) {
    // Small key/value pages stay on small pages of memory, so that those nobody uses cost nothing.
    return carve(state_, bytes, false);
}

std::byte* CpuOps::allocate_weight(size_t bytes) {
    // Small weights share huge pages: spread over small ones, a model of 135 million weights
    // decoded 134 instead of 157 tokens a second (docs/measurements.md).
    return carve(weights_, bytes, true);
}

void CpuOps::set_op_timing(bool on) {
    timing_ = on;
}

std::vector<OpCount> CpuOps::op_counts() const {
    return counts_;
}

void CpuOps::reset_op_counts() {
    counts_.clear();
}

ActWants CpuOps::wants(DType weight_format, int32_t /*experts*/) const {
    return linear_->wants(weight_format);
}

void CpuOps::note_composed(const Exec& ex, std::string_view op, std::string_view fallback) {
    if (!ex.planning()) ++count_of(counts_, op, Operands::kF32, fallback).calls;
}

CpuOps::Timed::Timed(CpuOps& ops,
                     std::string_view op,
                     double flops,
                     double bytes,
                     Operands operands,
                     std::string_view fallback)
    : ops_(ops) {
    OpCount& count = count_of(ops.counts_, op, operands, fallback);
    index_ = static_cast<size_t>(&count - ops.counts_.data());
    ++count.calls;
    count.flops += flops;
    count.bytes += bytes;
    if (ops.timing_) start_ = std::chrono::steady_clock::now();
}

CpuOps::Timed::~Timed() {
    if (!ops_.timing_) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    ops_.counts_[index_].seconds += elapsed.count();
}

}  // namespace tessera::cpu
