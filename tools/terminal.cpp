#include "tools/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

namespace tessera {
namespace {

std::string amount_text(ProgressUnit unit, double amount) {
    if (unit == ProgressUnit::kBytes) return bytes_text(amount);
    return fmt::format("{:.0f}{}", amount, unit == ProgressUnit::kTokens ? " tok" : "");
}

std::string rate_text(ProgressUnit unit, double per_second) {
    if (unit == ProgressUnit::kBytes) return bytes_text(per_second) + "/s";
    return fmt::format("{:.{}f}{}/s", per_second, per_second < 100 ? 1 : 0,
                       unit == ProgressUnit::kTokens ? " tok" : "");
}

}  // namespace

Terminal Terminal::of(int descriptor) {
    Terminal terminal;
    terminal.tty = isatty(descriptor) == 1;
    const char* no_color = std::getenv("NO_COLOR");
    const char* kind = std::getenv("TERM");
    const bool dumb = kind == nullptr || std::string_view(kind) == "dumb";
    terminal.color = terminal.tty && !dumb && (no_color == nullptr || *no_color == '\0');
    winsize size{};
    if (terminal.tty && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        terminal.width = size.ws_col;
    return terminal;
}

std::string colored(const Terminal& terminal, std::string_view code, std::string_view text) {
    if (!terminal.color) return std::string(text);
    return fmt::format("\033[{}m{}\033[0m", code, text);
}

void print_note(std::string_view text) {
    fmt::print(stderr, "tessera: note: {}\n", text);
}

std::string bytes_text(double bytes) {
    static constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
        bytes /= 1000;
        ++unit;
    }
    const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    return fmt::format("{:.{}f} {}", bytes, digits, kUnits[unit]);
}

std::string duration_text(double seconds) {
    const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 3.6e6) + 0.5);
    if (whole >= 3600)
        return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
    return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string progress_text(std::string_view what,
                          ProgressUnit unit,
                          int64_t done,
                          int64_t total,
                          double seconds,
                          int width) {
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0.0;
    std::string tail = fmt::format(" {:3.0f}%  {} of {}", 100 * share,
                                   amount_text(unit, static_cast<double>(done)),
                                   amount_text(unit, static_cast<double>(total)));
    if (rate > 0) tail += "  " + rate_text(unit, rate);
    if (rate > 0 && done < total)
        tail += "  " + duration_text(static_cast<double>(total - done) / rate) + " left";
    const int room = width - static_cast<int>(what.size() + tail.size()) - 4;
    std::string bar;
    if (room >= 10) {
        const int cells = std::min(room, 30);
        const int full = static_cast<int>(share * cells);
        bar = fmt::format(" [{}{}]", std::string(static_cast<size_t>(full), '#'),
                          std::string(static_cast<size_t>(cells - full), '.'));
    }
    std::string text = std::string(what) + bar + tail;
    if (static_cast<int>(text.size()) > width) text.resize(static_cast<size_t>(width));
    return text;
}

ProgressBar::ProgressBar(ProgressUnit unit) : unit_(unit), terminal_(Terminal::of(2)) {}

ProgressBar::~ProgressBar() {
    clear();
}

void ProgressBar::clear() {
    if (visible_) std::fputs("\r\033[K", stderr);
    visible_ = false;
}

void ProgressBar::update(std::string_view what, int64_t done, int64_t total) {
    using Seconds = std::chrono::duration<double>;
    const Clock::time_point now = Clock::now();
    if (what != what_ || done < done_ || start_ == Clock::time_point{}) {
        clear();
        what_ = what;
        start_ = now;
        drawn_ = {};
        tenth_ = 0;
    }
    done_ = done;
    const double seconds = Seconds(now - start_).count();
    if (terminal_.tty) {
        const bool due = drawn_ == Clock::time_point{} || Seconds(now - drawn_).count() > 0.1;
        if (seconds < 0.5 || !(due || done == total)) return;
        drawn_ = now;
        const std::string line =
            progress_text(what, unit_, done, total, seconds, terminal_.width - 1);
        std::fprintf(stderr, "\r\033[K%s", line.c_str());
        std::fflush(stderr);
        visible_ = true;
        return;
    }
    const int64_t tenth = total > 0 ? done * 10 / total : 10;
    if (seconds < 2.0 || tenth <= tenth_) return;
    tenth_ = tenth;
    std::fprintf(stderr, "%s\n", progress_text(what, unit_, done, total, seconds, 200).c_str());
}

}  // namespace tessera
