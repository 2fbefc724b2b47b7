// Packing is done once, at load, by plain loops: a row of a file is parsed unit by unit into codes
// and scale fields, which then go to their places. Unpacking inverts it exactly; it serves
// embeddings and the plain kernels.
#include "backends/cpu/cpu_linear_pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "core/codec.h"
#include "core/error.h"
#include "core/numeric.h"

namespace tessera::cpu {
namespace {

template <class T>
T get(const std::byte* source) {
    T value;
    std::memcpy(&value, source, sizeof(T));
    return value;
}
template <class T>
void put(std::byte* target, T value) {
    std::memcpy(target, &value, sizeof(T));
}
uint8_t byte_at(const std::byte* source, int64_t index) {
    return std::to_integer<uint8_t>(source[index]);
}

/// Where column k of a unit stands among the quads (isa/linear_layout.h).
struct Place {
    int quad;
    int byte;
};
constexpr Place place_of(int k) {
    return {k / 8 * 2 + k % 4 / 2, k % 2 * 2 + k % 8 / 4};
}
constexpr int nibble_shift(int k) {
    return 16 * (k % 2) + 4 * (k % 8 / 2);
}

/// What a file says about 32 columns of one row.
struct Parsed {
    uint8_t code[32];  ///< as stored, offset included (Q8_0: the byte)
    uint8_t scale[2];  ///< byte scale of each 16 columns, or of all
    uint8_t minimum;
    uint16_t d;  ///< f16 scale
    uint16_t m;  ///< f16 minimum
};

void parse_nibbles(const std::byte* packed, Parsed& out) {
    for (int j = 0; j < 16; ++j) {
        out.code[j] = byte_at(packed, j) & 15;
        out.code[j + 16] = static_cast<uint8_t>(byte_at(packed, j) >> 4);
    }
}
void parse_fifth(uint32_t mask, Parsed& out) {
    for (int j = 0; j < 32; ++j)
        out.code[j] = static_cast<uint8_t>(out.code[j] | ((mask >> j) & 1u) << 4);
}

/// E4M3 without sign to the subnormal-free code of the layout; 0 for zero.
uint8_t e5m3_from_ue4m3(uint8_t code) {
    const float value = f32_from_ue4m3(code);
    if (value == 0.0f) return 0;
    return static_cast<uint8_t>((std::bit_cast<uint32_t>(value) - (118u << 23)) >> 20);
}

void parse_k_scales(const std::byte* packed, int64_t j, Parsed& out) {
    if (j < 4) {
        out.scale[0] = byte_at(packed, j) & 63;
        out.minimum = byte_at(packed, j + 4) & 63;
        return;
    }
    const uint8_t low = byte_at(packed, j + 4);
    out.scale[0] = static_cast<uint8_t>((low & 15) | ((byte_at(packed, j - 4) >> 6) << 4));
    out.minimum = static_cast<uint8_t>((low >> 4) | ((byte_at(packed, j) >> 6) << 4));
}

void parse_k(const std::byte* row, int64_t u, bool five_bits, Parsed& out) {
    const int64_t sub = u % 8;
    const std::byte* block = row + u / 8 * (five_bits ? 176 : 144);
    const std::byte* nibbles = block + (five_bits ? 48 : 16) + sub / 2 * 32;
    out.d = get<uint16_t>(block);
    out.m = get<uint16_t>(block + 2);
    parse_k_scales(block + 4, sub, out);
    for (int l = 0; l < 32; ++l) {
        const int low = (byte_at(nibbles, l) >> (sub % 2 * 4)) & 15;
        const int top = five_bits ? (byte_at(block + 16, l) >> sub) & 1 : 0;
        out.code[l] = static_cast<uint8_t>(low | top << 4);
    }
}

void parse_q6_k(const std::byte* row, int64_t u, Parsed& out) {
    const std::byte* block = row + u / 8 * 210;
    const int64_t half = u % 8 / 4, quarter = u % 4;
    const std::byte* low = block + half * 64 + quarter % 2 * 32;
    const std::byte* high = block + 128 + half * 32;
    out.d = get<uint16_t>(block + 208);
    for (int group = 0; group < 2; ++group)
        out.scale[group] = byte_at(block, 192 + half * 8 + quarter * 2 + group);
    for (int l = 0; l < 32; ++l)
        out.code[l] = static_cast<uint8_t>(((byte_at(low, l) >> (quarter / 2 * 4)) & 15) |
                                           (((byte_at(high, l) >> (quarter * 2)) & 3) << 4));
}

Parsed parse(DType format, const std::byte* row, int64_t u) {
    Parsed out{};
    switch (format) {
        case DType::kMXFP4:
            out.scale[0] = byte_at(row, u * 17);
            parse_nibbles(row + u * 17 + 1, out);
            break;
        case DType::kQ4_0:
        case DType::kQ4_1: {
            const int64_t header = format == DType::kQ4_0 ? 2 : 4;
            const std::byte* block = row + u * (header + 16);
            out.d = get<uint16_t>(block);
            if (header == 4) out.m = get<uint16_t>(block + 2);
            parse_nibbles(block + header, out);
            break;
        }
        case DType::kQ5_0:
        case DType::kQ5_1: {
            const int64_t header = format == DType::kQ5_0 ? 2 : 4;
            const std::byte* block = row + u * (header + 20);
            out.d = get<uint16_t>(block);
            if (header == 4) out.m = get<uint16_t>(block + 2);
            parse_nibbles(block + header + 4, out);
            parse_fifth(get<uint32_t>(block + header), out);
            break;
        }
        case DType::kQ4_K:
        case DType::kQ5_K:
            parse_k(row, u, format == DType::kQ5_K, out);
            break;
        case DType::kQ6_K:
            parse_q6_k(row, u, out);
            break;
        default:
            fail_check("parse: not a block format", std::source_location::current());
    }
    return out;
}

bool is_plain(DType stored) {
    return !is_block_format(stored);
}

void put_codes(DType format, const Parsed& parsed, int64_t row, std::byte* unit) {
    uint32_t words[4] = {}, upper[2] = {};
    for (int k = 0; k < 32; ++k) {
        const Place place = place_of(k);
        words[k / 8] |= static_cast<uint32_t>(parsed.code[k] & 15) << nibble_shift(k);
        const uint32_t top = parsed.code[k] >> 4;
        if (format == DType::kQ6_K)
            upper[place.quad / 4] |= top << (8 * place.byte + 2 * (place.quad % 4));
        else
            upper[0] |= top << (8 * place.byte + place.quad);
    }
    for (int h = 0; h < 4; ++h) put(unit + 64 * h + 4 * row, words[h]);
    const int64_t extra = layout_of(format).unit_bytes - 256;
    for (int64_t h = 0; h < extra / 64; ++h) put(unit + 256 + 64 * h + 4 * row, upper[h]);
}

void put_scales(DType format, const Parsed& parsed, int64_t u, int64_t row, std::byte* scales) {
    const Layout layout = layout_of(format);
    std::byte* place = scales + u / layout.scale_units * layout.scale_bytes;
    switch (format) {
        case DType::kMXFP4:
            place[row] = std::byte{parsed.scale[0]};
            return;
        case DType::kQ6_K: {
            std::byte* own = place + 32 + u % 8 * 32 + row;
            own[0] = std::byte{parsed.scale[0]};
            own[16] = std::byte{parsed.scale[1]};
            break;
        }
        case DType::kQ4_K:
        case DType::kQ5_K: {
            std::byte* own = place + 64 + u % 8 * 32 + row;
            own[0] = std::byte{parsed.scale[0]};
            own[16] = std::byte{parsed.minimum};
            break;
        }
        default:
            break;
    }
    put(place + 2 * row, parsed.d);
    if (format == DType::kQ4_1 || format == DType::kQ5_1 || format == DType::kQ4_K ||
        format == DType::kQ5_K)
        put(place + 32 + 2 * row, parsed.m);
}

void put_plain(const PackTask& task, const std::byte* source, int64_t row) {
    const DType stored = stored_format(task.format);
    if (stored == DType::kF32) {
        std::vector<float> values(static_cast<size_t>(task.cols));
        dequantize_row(task.format, source, task.cols, values.data());
        for (int64_t k = 0; k < task.cols; ++k)
            put(task.codes + (k * 16 + row) * 4, values[static_cast<size_t>(k)]);
        return;
    }
    for (int64_t k = 0; k < task.cols; ++k) {
        const uint16_t value = get<uint16_t>(source + 2 * k);
        const int64_t index = stored == DType::kF16 ? k * 16 + row : (k / 2 * 16 + row) * 2 + k % 2;
        put(task.codes + 2 * index, value);
    }
}

float code_value(DType format, int code) {
    if (format == DType::kNVFP4 || format == DType::kMXFP4) return kE2M1Values[code];
    const int offset = format == DType::kQ4_0   ? 8
                       : format == DType::kQ5_0 ? 16
                       : format == DType::kQ6_K ? 32
                                                : 0;
    return static_cast<float>(code - offset);
}

float code_at(DType format, const std::byte* unit, int64_t row, int k) {
    const Place place = place_of(k);
    switch (format) {
        case DType::kF32:
            return get<float>(unit + (k * 16 + row) * 4);
        case DType::kF16:
            return f32_from_f16(get<uint16_t>(unit + (k * 16 + row) * 2));
        case DType::kBF16:
            return f32_from_bf16(get<uint16_t>(unit + ((k / 2 * 16 + row) * 2 + k % 2) * 2));
        case DType::kQ8_0:
            return static_cast<float>(
                static_cast<int8_t>(byte_at(unit, 16 * (4 * place.quad + place.byte) + row)));
        default:
            break;
    }
    uint32_t code = (get<uint32_t>(unit + 64 * (k / 8) + 4 * row) >> nibble_shift(k)) & 15u;
    if (format == DType::kQ6_K) {
        const uint32_t upper = get<uint32_t>(unit + 256 + 64 * (place.quad / 4) + 4 * row);
        code |= ((upper >> (8 * place.byte + 2 * (place.quad % 4))) & 3u) << 4;
    } else if (layout_of(format).unit_bytes == 320) {
        const uint32_t upper = get<uint32_t>(unit + 256 + 4 * row);
        code |= ((upper >> (8 * place.byte + place.quad)) & 1u) << 4;
    }
    return code_value(format, static_cast<int>(code));
}

struct RowScale {
    float scale[2];
    float minimum;
};

RowScale scale_at(DType format, const std::byte* scales, int64_t u, int64_t row) {
    const Layout layout = layout_of(format);
    if (layout.scale_units == 0) return {{1.0f, 1.0f}, 0.0f};
    const std::byte* place = scales + u / layout.scale_units * layout.scale_bytes;
    const auto e5m3 = [](uint8_t code) {
        return std::bit_cast<float>((static_cast<uint32_t>(code) << 20) + (118u << 23));
    };
    if (format == DType::kNVFP4)
        return {{e5m3(byte_at(place, row)), e5m3(byte_at(place, 16 + row))}, 0.0f};
    if (format == DType::kMXFP4) {
        const float scale = f32_from_e8m0(byte_at(place, row));
        return {{scale, scale}, 0.0f};
    }
    const float d = f32_from_f16(get<uint16_t>(place + 2 * row));
    if (format == DType::kQ6_K) {
        const std::byte* own = place + 32 + u % 8 * 32;
        const auto part = [&](int64_t at) {
            return d * static_cast<float>(static_cast<int8_t>(byte_at(own, at + row)));
        };
        return {{part(0), part(16)}, 0.0f};
    }
    if (layout.scale_bytes == 32) return {{d, d}, 0.0f};
    const float m = f32_from_f16(get<uint16_t>(place + 32 + 2 * row));
    if (layout.scale_units == 1) return {{d, d}, m};
    const std::byte* own = place + 64 + u % 8 * 32;
    const float scale = d * static_cast<float>(byte_at(own, row));
    return {{scale, scale}, -(m * static_cast<float>(byte_at(own, 16 + row)))};
}

/// NVFP4 and Q8_0, of which most models are made, have loops of their own: loading is as fast as
/// they are.
struct E5M3Table {
    uint8_t code[128];
    bool zero[128];
    E5M3Table() {
        for (int raw = 0; raw < 128; ++raw) {
            code[raw] = e5m3_from_ue4m3(static_cast<uint8_t>(raw));
            zero[raw] = f32_from_ue4m3(static_cast<uint8_t>(raw)) == 0.0f;
        }
    }
};

/// Eight codes, one a byte, to their places in the word of a lane (nibble_shift).
uint32_t lane_word(uint64_t codes) {
    constexpr uint64_t kEvery16 = 0x000f000f000f000f;
    const auto gather = [](uint64_t c) {
        return static_cast<uint32_t>((c | c >> 12 | c >> 24 | c >> 36) & 0xffff);
    };
    return gather(codes & kEvery16) | gather((codes >> 8) & kEvery16) << 16;
}

void pack_nvfp4_row(const PackTask& task, const std::byte* source, int64_t row) {
    static const E5M3Table kTable;
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
    for (int64_t u = 0; u < task.cols / kUnitCols; ++u) {
        const std::byte* block = source + u / 2 * 36;
        for (int64_t group = 0; group < 2; ++group) {
            const int64_t sub = u % 2 * 2 + group;
            const uint8_t raw = byte_at(block, sub) & 0x7f;
            const uint64_t codes = kTable.zero[raw] ? 0 : get<uint64_t>(block + 4 + 8 * sub);
            std::byte* words = task.codes + u * 256 + 128 * group + 4 * row;
            put(words, lane_word(codes & kLow));
            put(words + 64, lane_word((codes >> 4) & kLow));
            task.scales[u * 32 + 16 * group + row] = std::byte{kTable.code[raw]};
        }
    }
}

void pack_q8_0_row(const PackTask& task, const std::byte* source, int64_t row) {
    for (int64_t u = 0; u < task.cols / kUnitCols; ++u, source += 34) {
        put(task.scales + 32 * u + 2 * row, get<uint16_t>(source));
        std::byte* unit = task.codes + 512 * u + row;
        for (int64_t eight = 0; eight < 32; eight += 8)
            for (int64_t i = 0; i < 8; ++i)
                unit[16 * (eight + i)] = source[2 + eight + kByteOrder[i]];
    }
}

}  // namespace

DType stored_format(DType format) {
    const bool plain = !is_block_format(format);
    return plain && format != DType::kF16 && format != DType::kBF16 ? DType::kF32 : format;
}

void pack_block(const PackTask& task) {
    const DType stored = stored_format(task.format);
    const Layout layout = layout_of(stored);
    const int64_t row_bytes = dtype_bytes(task.format, task.cols);
    const int64_t first = task.block * kBlockRows;
    const int64_t rows = std::min<int64_t>(kBlockRows, task.rows - first);
    for (int64_t row = 0; row < rows; ++row) {
        const std::byte* source = task.source + (first + row) * row_bytes;
        if (is_plain(stored)) {
            put_plain(task, source, row);
            continue;
        }
        if (task.format == DType::kNVFP4) {
            pack_nvfp4_row(task, source, row);
            continue;
        }
        if (task.format == DType::kQ8_0) {
            pack_q8_0_row(task, source, row);
            continue;
        }
        for (int64_t u = 0; u < task.cols / kUnitCols; ++u) {
            const Parsed parsed = parse(task.format, source, u);
            put_codes(task.format, parsed, row, task.codes + u * layout.unit_bytes);
            put_scales(task.format, parsed, u, row, task.scales);
        }
    }
}

void unpack_unit(
    DType stored, const std::byte* codes, const std::byte* scales, int64_t u, UnitRows& out) {
    const std::byte* unit = codes + u * layout_of(stored).unit_bytes;
    for (int k = 0; k < kUnitCols; ++k)
        for (int64_t row = 0; row < kBlockRows; ++row)
            out.codes[k][row] = code_at(stored, unit, row, k);
    for (int64_t row = 0; row < kBlockRows; ++row) {
        const RowScale scale = scale_at(stored, scales, u, row);
        out.scale[0][row] = scale.scale[0];
        out.scale[1][row] = scale.scale[1];
        out.minimum[row] = scale.minimum;
    }
}

void unpack_row(DType stored,
                const std::byte* codes,
                const std::byte* scales,
                int64_t row,
                int64_t cols,
                float* values) {
    const Layout layout = layout_of(stored);
    const bool minimum =
        layout.scale_units != 0 && layout.scale_bytes >= 64 && stored != DType::kQ6_K;
    for (int64_t u = 0; u * kUnitCols < cols; ++u) {
        const RowScale scale = scale_at(stored, scales, u, row);
        const int64_t count = std::min(kUnitCols, cols - u * kUnitCols);
        for (int k = 0; k < count; ++k) {
            const float code = code_at(stored, codes + u * layout.unit_bytes, row, k);
            const float value = code * scale.scale[k / 16];
            values[u * kUnitCols + k] = minimum ? value + scale.minimum : value;
        }
    }
}

}  // namespace tessera::cpu
