#pragma once
// A counter that bounds recursion for as long as it lives.

#include "text/jinja/value.h"

namespace tessera::jinja {

class DepthGuard {
  public:
    DepthGuard(int& depth, int limit, const char* message) : depth_(depth) {
        if (depth_ >= limit) fail(message);
        ++depth_;
    }
    ~DepthGuard() { --depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

  private:
    int& depth_;
};

/// Statements and expressions inside each other, over all macro calls: what the stack can hold.
inline constexpr int kMaxNesting = 2500;

}  // namespace tessera::jinja
