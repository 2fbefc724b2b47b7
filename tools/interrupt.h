#pragma once
// Ctrl-C while an answer runs.

namespace tessera {

/// While it lives, the first Ctrl-C only sets a flag and the second one ends the program with exit
/// code 130. One at a time. A system call that waits for input returns early.
class InterruptScope {
  public:
    InterruptScope();
    ~InterruptScope();
    InterruptScope(const InterruptScope&) = delete;
    InterruptScope& operator=(const InterruptScope&) = delete;
    bool requested() const;
};

}  // namespace tessera
