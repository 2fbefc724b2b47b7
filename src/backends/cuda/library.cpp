#include "backends/cuda/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <interface_hash.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "backends/cuda/entry.h"

namespace tessera::cuda {
namespace {

constexpr const char* kLibrary = "libtessera_cuda.so";

void* open_library() {
    std::error_code ignored;
    const std::filesystem::path program =
        std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    std::string reason;
    for (const std::filesystem::path& folder : {program, program / ".." / "lib"}) {
        const std::filesystem::path file = folder / kLibrary;
        if (!std::filesystem::exists(file, ignored)) continue;
        if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
        reason = dlerror();
    }
    throw UserError(
        ExitCode::kDevice,
        reason.empty()
            ? fmt::format("this program was built without CUDA: {} is not beside it", kLibrary)
            : fmt::format("cannot load the CUDA backend: {}", reason));
}

}  // namespace

bool card_present() {
    // Of the driver's interface, which is the same in all versions.
    constexpr int kOk = 0, kStubLibrary = 34, kNoDevice = 100;
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver == nullptr) return false;
    const auto start = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
    const auto count_cards = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
    if (start == nullptr || count_cards == nullptr) return false;
    const int status = start(0);
    if (status != kOk) return status != kNoDevice && status != kStubLibrary;
    int cards = 0;
    return count_cards(&cards) != kOk || cards > 0;
}

std::unique_ptr<Ops> make_cuda_ops(const CudaOptions& options) {
    static void* const library = open_library();
    const auto create =
        reinterpret_cast<decltype(&tessera_cuda_create)>(dlsym(library, "tessera_cuda_create"));
    const auto interface = reinterpret_cast<decltype(&tessera_cuda_interface)>(
        dlsym(library, "tessera_cuda_interface"));
    if (create == nullptr || interface == nullptr ||
        interface() != std::string_view(TESSERA_INTERFACE_HASH))
        throw UserError(
            ExitCode::kDevice,
            fmt::format("{} is of another build than this program: build both again", kLibrary));
    return std::unique_ptr<Ops>(create(options));
}

}  // namespace tessera::cuda
