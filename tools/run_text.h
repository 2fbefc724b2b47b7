#pragma once
// Words of `tessera run`.

#include <string>

#include "engine/generate.h"

namespace tessera {

/// A rate with digits that mean something: "8,860", "82.8".
std::string rate_digits(double per_second);

/// "prompt 1234 tok (236 cached) 8,860 t/s | gen 128 tok 82.8 t/s | 1.9 s". The prompt's rate is
/// that of the tokens that were not cached; the first answer token comes with the prompt, so the
/// answer's rate counts the passes after it.
std::string stats_line(const GenerateResult& result);

}  // namespace tessera
