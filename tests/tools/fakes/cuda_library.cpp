// Stands in for a CUDA backend that was built with other headers than the program.
extern "C" {
[[gnu::visibility("default")]] const char* tessera_cuda_interface() {
    return "of another build";
}
[[gnu::visibility("default")]] void* tessera_cuda_create(const void*) {
    return nullptr;
}
}
