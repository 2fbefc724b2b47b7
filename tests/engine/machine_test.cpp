#include "engine/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// A folder of control-group files; "" leaves one out.
int64_t available(const std::string& limit, const std::string& used, const std::string& stat) {
    const fs::path folder =
        fs::temp_directory_path() / ("tessera_cgroup_" + std::to_string(::getpid()));
    fs::create_directory(folder);
    if (!limit.empty()) std::ofstream(folder / "memory.max") << limit << "\n";
    if (!used.empty()) std::ofstream(folder / "memory.current") << used << "\n";
    if (!stat.empty()) std::ofstream(folder / "memory.stat") << stat;
    const int64_t bytes = cgroup_available_bytes(folder.string());
    fs::remove_all(folder);
    return bytes;
}

// Guards against refusing to load in a container whose memory is full of cached files, such as the
// model itself after a download.
TEST(CgroupMemory, CachedFilesAreFree) {
    EXPECT_EQ(available("1000", "900", "anon 300\nfile 600\ninactive_file 400\nactive_file 200\n"),
              700);
    EXPECT_EQ(available("1000", "900", "anon 900\ninactive_file 0\nactive_file 0\n"), 100);
    EXPECT_EQ(available("1000", "900", ""), 100);
    EXPECT_EQ(available("1000", "1100", "anon 1100\n"), 0);
}

// Guards against a limit where there is none.
TEST(CgroupMemory, NoLimitIsNoLimit) {
    EXPECT_EQ(available("max", "900", "anon 900\n"), -1);
    EXPECT_EQ(available("", "900", ""), -1);
    EXPECT_EQ(available("1000", "", ""), -1);
    EXPECT_EQ(available("garbage", "900", ""), -1);
}

}  // namespace
}  // namespace tessera
