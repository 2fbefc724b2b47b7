#pragma once
// The two kinds of failure. A UserError is anything that a person can cause (file, flag, memory,
// device): it is caught once, in main, and becomes one line and an exit code. check() guards our
// own invariants: it prints where it stands and aborts. Nothing else is thrown on purpose.

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

/// Exit codes of the program, documented in README.md and the man page.
enum class ExitCode : int {
    kOk = 0,
    kFailure = 1,       ///< anything that fits no other row
    kUsage = 2,         ///< unknown or contradictory flags
    kModel = 3,         ///< a model or data file that is missing, damaged or not supported
    kMemory = 4,        ///< the plan does not fit into memory
    kDevice = 5,        ///< a device or driver that is missing or too old
    kInterrupted = 130  ///< Ctrl-C
};

/// A failure that the user can cause and mend. `what()` is one line that names what and where.
class UserError : public std::runtime_error {
  public:
    UserError(ExitCode code, const std::string& message)
        : std::runtime_error(message), code_(code) {}
    ExitCode code() const { return code_; }

  private:
    ExitCode code_;
};

/// Prints `message` with its place in our source and aborts (exit code 134).
[[noreturn]] void fail_check(std::string_view message, const std::source_location& where);

/// Aborts when `condition` is false: for bugs of ours, never for input. Always on.
inline void check(bool condition,
                  std::string_view message,
                  const std::source_location& where = std::source_location::current()) {
    if (!condition) [[unlikely]]
        fail_check(message, where);
}

}  // namespace tessera
