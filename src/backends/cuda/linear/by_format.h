#pragma once
// From the format of a weight, known when the program runs, to templates over it.

#include "core/dtype.h"

namespace tessera::cuda {

/// `make.operator()<F>()` for each format F whose weights tensor cores take: a pointer to a
/// function of one type for all of them; null for other formats.
template <class Make>
auto by_format(DType format, const Make& make)
    -> decltype(make.template operator()<DType::kF16>()) {
    switch (format) {
        case DType::kF16:
            return make.template operator()<DType::kF16>();
        case DType::kBF16:
            return make.template operator()<DType::kBF16>();
        case DType::kQ4_0:
            return make.template operator()<DType::kQ4_0>();
        case DType::kQ4_1:
            return make.template operator()<DType::kQ4_1>();
        case DType::kQ5_0:
            return make.template operator()<DType::kQ5_0>();
        case DType::kQ5_1:
            return make.template operator()<DType::kQ5_1>();
        case DType::kQ8_0:
            return make.template operator()<DType::kQ8_0>();
        case DType::kQ4_K:
            return make.template operator()<DType::kQ4_K>();
        case DType::kQ5_K:
            return make.template operator()<DType::kQ5_K>();
        case DType::kQ6_K:
            return make.template operator()<DType::kQ6_K>();
        case DType::kMXFP4:
            return make.template operator()<DType::kMXFP4>();
        case DType::kNVFP4:
            return make.template operator()<DType::kNVFP4>();
        default:
            return nullptr;
    }
}

}  // namespace tessera::cuda
