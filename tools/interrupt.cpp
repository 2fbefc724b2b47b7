#include "tools/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "core/error.h"

namespace tessera {
namespace {

// A signal handler has no argument of ours: what it touches has to be global.
std::atomic<int> interrupt_count{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not lock");

void on_interrupt(int) {
    if (interrupt_count.fetch_add(1) == 0) return;
    constexpr char kNewLine = '\n';
    // What write returns does not matter: the program ends here.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, &kNewLine, 1);
    _exit(static_cast<int>(ExitCode::kInterrupted));
}

void handle_with(void (*handler)(int), InterruptScope::Signals signals) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    // No SA_RESTART: a read that waits for the user's next line has to return.
    action.sa_flags = 0;
    sigaction(SIGINT, &action, nullptr);
    if (signals == InterruptScope::Signals::kInterruptAndTerminate)
        sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptScope::InterruptScope(Signals signals) : signals_(signals) {
    interrupt_count = 0;
    handle_with(&on_interrupt, signals);
}

InterruptScope::~InterruptScope() {
    handle_with(SIG_DFL, signals_);
}

bool InterruptScope::requested() const {
    return interrupt_count.load() > 0;
}

void InterruptScope::stop_writing(const std::string& output) const {
    if (requested())
        throw UserError(ExitCode::kInterrupted, "interrupted; " + output + " is not written");
}

}  // namespace tessera
