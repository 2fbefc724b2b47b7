#include "engine/machine.h"

#ifdef __GLIBC__
#    include <malloc.h>
#endif

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace tessera {
namespace {

/// First line of a small kernel file, empty when it cannot be read.
std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// The number in a control-group file, or -1 for "max", an absent file or garbage.
int64_t cgroup_bytes(const std::string& path) {
    const std::string line = first_line(path);
    if (line.empty() || line.find_first_not_of("0123456789") != std::string::npos ||
        line.size() > 18)
        return -1;
    return std::stoll(line);
}

int64_t meminfo_available() {
    std::ifstream file("/proc/meminfo");
    std::string key;
    int64_t kibibytes = 0;
    while (file >> key >> kibibytes) {
        if (key == "MemAvailable:") return kibibytes * 1024;
        std::getline(file, key);
    }
    return 0;
}

}  // namespace

int32_t physical_cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        const std::string siblings = first_line(
            fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
        cores.insert(siblings.empty() ? fmt::format("cpu{}", cpu) : siblings);
    }
    return std::max<int32_t>(1, static_cast<int32_t>(cores.size()));
}

int64_t available_memory_bytes() {
    const int64_t available = meminfo_available();
    const int64_t in_group = cgroup_available_bytes("/sys/fs/cgroup");
    return in_group >= 0 ? std::min(available, in_group) : available;
}

int64_t cgroup_available_bytes(const std::string& folder) {
    const int64_t limit = cgroup_bytes(folder + "/memory.max");
    const int64_t used = cgroup_bytes(folder + "/memory.current");
    if (limit < 0 || used < 0) return -1;
    // memory.current counts cached files too. The kernel drops those when memory is asked for, and
    // a model that was just copied or read fills a small group with them.
    int64_t cached = 0;
    std::ifstream file(folder + "/memory.stat");
    std::string key;
    for (int64_t bytes = 0; file >> key >> bytes;)
        if (key == "inactive_file" || key == "active_file") cached += bytes;
    return std::max<int64_t>(limit - used + std::min(cached, used), 0);
}

void release_free_heap() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

}  // namespace tessera
