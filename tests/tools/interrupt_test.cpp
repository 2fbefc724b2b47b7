#include "tools/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "core/error.h"

namespace tessera {
namespace {

// Guards against a signal that ends the program while a file is half written: the first one only
// asks to stop, by an error that names the file.
TEST(Interrupt, ASignalStopsTheWritingByAnError) {
    for (const int signal : {SIGINT, SIGTERM}) {
        const InterruptScope scope(InterruptScope::Signals::kInterruptAndTerminate);
        EXPECT_NO_THROW(scope.stop_writing("out.gguf"));
        std::raise(signal);
        try {
            scope.stop_writing("out.gguf");
            FAIL() << "signal " << signal;
        } catch (const UserError& error) {
            EXPECT_EQ(error.code(), ExitCode::kInterrupted);
            EXPECT_NE(std::string(error.what()).find("out.gguf"), std::string::npos);
        }
    }
}

}  // namespace
}  // namespace tessera
