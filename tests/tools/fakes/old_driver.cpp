// Stands in for a driver that is older than this program's CUDA.
extern "C" {
[[gnu::visibility("default")]] int cuInit(unsigned) {
    return 0;
}
[[gnu::visibility("default")]] int cuDriverGetVersion(int* version) {
    *version = 11080;
    return 0;
}
[[gnu::visibility("default")]] int cuDeviceGetCount(int* count) {
    *count = 1;
    return 0;
}
}
