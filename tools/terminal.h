#pragma once
// What stands at the other end of a stream, and progress shown on it.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

struct Terminal {
    bool tty = false;
    bool color = false;  ///< a tty, TERM is not "dumb" and NO_COLOR is not set (no-color.org)
    int width = 80;      ///< columns
    /// Looks at a file descriptor (1: stdout, 2: stderr).
    static Terminal of(int descriptor);
};

/// `text` in an ANSI colour ("1" bold, "32" green, ...) where colours are wanted.
std::string colored(const Terminal& terminal, std::string_view code, std::string_view text);

/// A line on stderr that is no failure; as BackendOptions::note.
void print_note(std::string_view text);

/// "1.5 GB", "768 MB", "12 kB": decimal units, three digits.
std::string bytes_text(double bytes);
/// "0:07", "12:34", "3:00:00".
std::string duration_text(double seconds);

enum class ProgressUnit : uint8_t { kBytes, kTokens, kCount };

/// One state of a long operation as text, at most `width` columns: what, bar (left out when it does
/// not fit), percentage, rate and time left.
std::string progress_text(std::string_view what,
                          ProgressUnit unit,
                          int64_t done,
                          int64_t total,
                          double seconds,
                          int width);

/// Progress on stderr: a line that is redrawn on a terminal, one line per 10 % elsewhere.
/// Operations shorter than half a second (2 s when there is no terminal) stay silent. A bar is a
/// ProgressFn.
class ProgressBar {
  public:
    explicit ProgressBar(ProgressUnit unit);
    ~ProgressBar();
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;
    /// A new `what`, or less done than before, starts a new operation.
    void update(std::string_view what, int64_t done, int64_t total);
    /// Removes the line, so that other text may follow.
    void clear();

  private:
    using Clock = std::chrono::steady_clock;
    ProgressUnit unit_;
    Terminal terminal_;
    std::string what_;
    Clock::time_point start_;
    Clock::time_point drawn_;
    int64_t done_ = 0;
    int64_t tenth_ = 0;
    bool visible_ = false;
};

}  // namespace tessera
