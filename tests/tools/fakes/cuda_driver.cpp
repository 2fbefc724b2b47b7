// Stands in for the driver of a machine with FAKE_CARDS cards, so that what is said about cards can
// be tested on any machine.
extern "C" {
[[gnu::visibility("default")]] int cuInit(unsigned) {
    constexpr int kNoDevice = 100;
    return FAKE_CARDS > 0 ? 0 : kNoDevice;
}
[[gnu::visibility("default")]] int cuDeviceGetCount(int* count) {
    *count = FAKE_CARDS;
    return 0;
}
}
