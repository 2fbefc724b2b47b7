#pragma once
// Reads what scripts/oracles/*.py stored under tests/data.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::test {

inline std::string data_path(const std::string& name) {
    return std::string(TESSERA_TEST_DATA) + "/" + name;
}

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A file of plain elements.
template <class T>
std::vector<T> read_vector(const std::string& path) {
    const std::string text = read_text(path);
    EXPECT_EQ(text.size() % sizeof(T), 0u) << path;
    std::vector<T> elements(text.size() / sizeof(T));
    std::memcpy(elements.data(), text.data(), elements.size() * sizeof(T));
    return elements;
}

/// Lines of tab-separated fields.
inline std::vector<std::vector<std::string>> read_table(const std::string& path) {
    std::vector<std::vector<std::string>> rows;
    std::istringstream lines(read_text(path));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream fields(line);
        rows.emplace_back();
        for (std::string field; std::getline(fields, field, '\t');) rows.back().push_back(field);
    }
    return rows;
}

}  // namespace tessera::test
