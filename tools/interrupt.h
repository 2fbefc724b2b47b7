#pragma once
// Ctrl-C while an answer runs or a file is written.

#include <string>

namespace tessera {

/// While it lives, the first Ctrl-C only sets a flag and the second one ends the program with exit
/// code 130. One at a time. A system call that waits for input returns early.
class InterruptScope {
  public:
    enum class Signals { kInterrupt, kInterruptAndTerminate };
    /// `signals`: SIGINT alone, or SIGTERM just like it.
    explicit InterruptScope(Signals signals = Signals::kInterrupt);
    ~InterruptScope();
    InterruptScope(const InterruptScope&) = delete;
    InterruptScope& operator=(const InterruptScope&) = delete;
    bool requested() const;
    /// UserError(kInterrupted) naming the output that is not written, once requested.
    void stop_writing(const std::string& output) const;

  private:
    Signals signals_;
};

}  // namespace tessera
