#pragma once
// One run of a case on one backend: builds the operands from the seed, calls the op, gathers what
// it wrote. The runner (runner.h) compares such runs.

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "op_cases/guarded.h"
#include "op_cases/op_case.h"

namespace tessera::op_cases {

/// Encoded random weights, made once per format and size and shared by all cases and backends.
class WeightBank {
  public:
    /// `which` + kSpread: rows are smaller by up to 2^11, blocks of 32 columns by up to 2^6.
    static constexpr uint32_t kSpread = 1u << 16;
    const std::vector<std::byte>& encoded(DType format, int64_t n, int64_t k, uint32_t which);

  private:
    std::map<std::tuple<DType, int64_t, int64_t, uint32_t>, std::vector<std::byte>> weights_;
};

/// A backend and the weights that it has taken over.
class Subject {
  public:
    Subject(Ops& subject_ops, WeightBank& bank) : ops(subject_ops), bank_(bank) {}
    /// `which` tells several weights of one size apart.
    const Weight& weight(DType format, int64_t n, int64_t k, float outer_scale, uint32_t which);
    /// A stack in which every expert is another window of the same rows; `scales`: none or one per
    /// expert.
    const Weight& experts(DType format,
                          int64_t n,
                          int64_t k,
                          int32_t count,
                          const std::vector<float>& scales,
                          uint32_t which);
    Ops& ops;

  private:
    WeightBank& bank_;
    std::map<std::tuple<DType, int64_t, int64_t, float, uint32_t>, Weight> uploaded_;
    std::map<std::tuple<DType, int64_t, int64_t, int32_t, bool, uint32_t>, Weight> stacks_;
};

enum class Body : uint8_t {
    kOverride,  ///< what the backend runs
    kDefault    ///< the composition in Ops
};

struct Request {
    Subject& subject;
    uint64_t seed = 0;
    int32_t cut = 0;  ///< rows per call; 0: all in one
    Body body = Body::kOverride;
    uint8_t poison = 0x7f;  ///< fills the arena before each call
    int32_t repeats = 0;    ///< > 0: only measure, so often
};

struct Outputs {
    std::vector<float> values{};        ///< judged by NMSE
    std::vector<std::byte> exact{};     ///< judged bit for bit
    std::vector<std::string> faults{};  ///< overwritten guards, plan and run that differ
    ActWants wants{};                   ///< formats that the weight asked for
    double seconds = 0;                 ///< of all repeats
};

Outputs execute(const LinearCase& shape, const Request& request);
Outputs execute(const FusedCase& shape, const Request& request);
Outputs execute(const NormCase& shape, const Request& request);
Outputs execute(const AddCase& shape, const Request& request);
Outputs execute(const GluCase& shape, const Request& request);
Outputs execute(const SoftmaxCase& shape, const Request& request);
Outputs execute(const RopeCase& shape, const Request& request);
Outputs execute(const CopyCase& shape, const Request& request);
Outputs execute(const ConcatCase& shape, const Request& request);
Outputs execute(const GatherCase& shape, const Request& request);
Outputs execute(const PagedCase& shape, const Request& request);
Outputs execute(const ConvCase& shape, const Request& request);
Outputs execute(const DeltaInputCase& shape, const Request& request);
Outputs execute(const L2NormCase& shape, const Request& request);
Outputs execute(const GatesCase& shape, const Request& request);
Outputs execute(const DeltaCase& shape, const Request& request);
Outputs execute(const ExpertCase& shape, const Request& request);
Outputs execute(const RouteCase& shape, const Request& request);
Outputs execute(const CombineCase& shape, const Request& request);
Outputs execute(const ArgmaxCase& shape, const Request& request);
Outputs execute(const SampleCase& shape, const Request& request);

/// Rows of a call and how many of them are prompt rows.
struct Rows {
    int32_t count = 0;
    int32_t prompt = 0;
};

/// Calls `call(ex, begin, count)` for each cut of the rows, first planning, then in an arena of
/// exactly the planned size, filled with poison; checks that plan and run take the same.
using Call = std::function<void(Exec&, int32_t begin, int32_t count)>;
void drive(const Request& request, const Rows& rows, const Call& call, Outputs& outputs);

/// `t` rows of logits with the oddities of `kind`, sealed.
void fill_logits(Guarded& tensor, Logits kind, int32_t t, int64_t vocabulary, Random& random);

/// Appends every view of an input, row by row, decoded with its scales.
void read_input(const GemmInput& input, std::vector<float>& values);

}  // namespace tessera::op_cases
