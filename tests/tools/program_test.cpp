// The built program from outside: exit codes, one line on stderr, nothing but answers on stdout,
// and generated files that match the program.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tools/scratch_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class Program : public ScratchFolder {
  protected:
    /// Runs the program with a shell's words, in an empty folder.
    Outcome run(const std::string& words) const {
        return execute("'" TESSERA_PROGRAM "' " + words);
    }

    /// A refusal: this exit code, one line on stderr, nothing on stdout.
    void expect_refusal(const std::string& words, int code, const std::string& part) const {
        const Outcome outcome = run(words);
        EXPECT_EQ(outcome.code, code) << words << ": " << outcome.err;
        EXPECT_EQ(outcome.out, "") << words;
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1)
            << words << ": " << outcome.err;
        EXPECT_TRUE(outcome.err.starts_with("tessera: ")) << outcome.err;
        EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    }
};

TEST_F(Program, WrongUseIsExitCode2) {
    expect_refusal("bnech", 2, "did you mean 'bench'?");
    expect_refusal("run model.gguf --tempp 1", 2, "did you mean --temp?");
    expect_refusal("run model.gguf --mirostat 2", 2, "--mirostat: tessera does not have this flag");
    expect_refusal("run", 2, "no model");
    expect_refusal("bench -p 512", 2, "no model");
    expect_refusal("quantize in.gguf out.gguf NVFP5", 2, "did you mean NVFP4?");
    expect_refusal("synth llama 1x out.gguf", 2, "known: tiny, 135m, 1b, 8b");
    expect_refusal("inspect", 2, "no model");
    expect_refusal("tokenize -m x", 2, "no text");
    expect_refusal("test-ops tset", 2, "did you mean test?");
    expect_refusal("help bnech", 2, "did you mean 'bench'?");
    expect_refusal("help --mna", 2, "did you mean --man?");
    expect_refusal("--completion tcsh", 2, "known: bash, zsh, fish");
}

TEST_F(Program, BadFilesAreExitCode3) {
    std::ofstream(folder_ / "text.gguf") << "this is no model, however one looks at it";
    for (const char* words : {"inspect", "tokenize -p hi -m", "run -p hi -m", "bench -m"}) {
        expect_refusal(std::string(words) + " none.gguf", 3, "none.gguf");
        expect_refusal(std::string(words) + " text.gguf", 3, "text.gguf");
    }
    expect_refusal("quantize none.gguf out.gguf NVFP4", 3, "none.gguf");
    expect_refusal("quantize text.gguf out.gguf NVFP4", 3, "text.gguf");
    EXPECT_FALSE(fs::exists(folder_ / "out.gguf"));
    EXPECT_FALSE(fs::exists(folder_ / "out.gguf.part"));
    for (const char* words : {"inspect .", "tokenize -p hi -m .", "run -p hi -m .", "bench -m .",
                              "quantize . out.gguf NVFP4", "convert . out.gguf"})
        expect_refusal(words, 3, ".: has no config.json");
}

TEST_F(Program, UnwritableOutputIsExitCode1) {
    ASSERT_EQ(run("synth llama tiny a.gguf --type f16").code, 0);
    expect_refusal("quantize a.gguf none/b.gguf NVFP4", 1, "none/b.gguf");
    expect_refusal("synth llama tiny none/b.gguf", 1, "none/b.gguf");
    expect_refusal("quantize a.gguf a.gguf NVFP4", 2, "same file");
}

TEST_F(Program, MakesQuantizesAndInspectsAModel) {
    ASSERT_EQ(run("synth qwen3 tiny a.gguf --type bf16 --seed 3").code, 0);
    const Outcome quantized = run("quantize a.gguf b.gguf NVFP4 --scale-policy amax6");
    EXPECT_EQ(quantized.code, 0) << quantized.err;
    EXPECT_EQ(quantized.out, "");
    EXPECT_NE(quantized.err.find("bits per weight"), std::string::npos);
    const Outcome text = run("inspect b.gguf -c 1000");
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_NE(text.out.find("blk.1.ffn_down.weight"), std::string::npos);
    // 1000 tokens take 16 pages of 64; 2 layers, 2 heads of 64, keys and values in two bytes.
    EXPECT_NE(text.out.find("cache 1.05 MB"), std::string::npos) << text.out;
    const Outcome json = run("inspect b.gguf --json --no-tensors -c 1000 -ctk f32");
    EXPECT_EQ(json.code, 0);
    EXPECT_NE(json.out.find("\"kv_bytes\": 1572864"), std::string::npos) << json.out;
    EXPECT_EQ(json.out.find("blk.1"), std::string::npos);
    const Outcome ids = run("tokenize -m b.gguf -p 'the ab' --ids --show-count");
    EXPECT_EQ(ids.out, "[258, 101, 32, 97, 98]\nTotal number of tokens: 5\n") << ids.err;
}

// Guards against a report that leaves out what an issue needs, or ops without a case in it.
TEST_F(Program, DoctorReports) {
    const Outcome report = run("doctor -b cpu --quick");
    EXPECT_EQ(report.code, 0) << report.out << report.err;
    for (const char* part : {"- build: tessera " TESSERA_TEST_VERSION ", commit ",
                             "- machine: ", "- backend CPU: ", "| MUL_MAT_ID | ",
                             "| GATED_DELTA_NET | ", "- op cases: ", "- result: all is well"})
        EXPECT_NE(report.out.find(part), std::string::npos) << part << report.out;
    expect_refusal("doctor -b cpy", 2, "cpu");
}

TEST_F(Program, ExplainsItself) {
    EXPECT_EQ(run("--version").out, "tessera " TESSERA_TEST_VERSION "\n");
    const Outcome overview = run("help");
    EXPECT_EQ(overview.code, 0);
    for (const char* name : {"run", "bench", "perplexity", "quantize", "inspect", "tokenize",
                             "synth", "test-ops", "doctor"}) {
        EXPECT_NE(overview.out.find("  " + std::string(name)), std::string::npos);
        const Outcome help = run(std::string(name) + " --help");
        EXPECT_EQ(help.code, 0);
        EXPECT_EQ(help.err, "");
        EXPECT_TRUE(help.out.starts_with("usage: tessera " + std::string(name))) << help.out;
        EXPECT_EQ(run("help " + std::string(name)).out, help.out);
    }
    // A paragraph that was wrapped starts at the margin.
    const std::string about = run("help run").out;
    EXPECT_NE(about.find(" The\nanswer goes"), std::string::npos) << about;
    const Outcome nothing = run("");
    EXPECT_EQ(nothing.code, 2);
    EXPECT_EQ(nothing.out, "");
}

// Guards against documentation that lags behind the flags; scripts/generate_help.sh renews it.
TEST_F(Program, GeneratedFilesAreInSync) {
    const fs::path docs = fs::path(TESSERA_TEST_DATA).parent_path().parent_path() / "docs";
    EXPECT_EQ(run("help --man").out, contents(docs / "man/tessera.1"));
    EXPECT_EQ(run("help --markdown").out, contents(docs / "flags.md"));
    for (const char* shell : {"bash", "zsh", "fish"})
        EXPECT_EQ(run("--completion " + std::string(shell)).out,
                  contents(docs / "completions" / ("tessera." + std::string(shell))));
}

// Guards against a completion script that does not even load, or offers nothing.
TEST_F(Program, BashCompletionOffersFlagsAndValues) {
    ASSERT_EQ(run("--completion bash").code, 0);
    fs::rename(folder_ / "stdout", folder_ / "complete.bash");
    std::ofstream(folder_ / "try.sh") << "source complete.bash\n"
                                         "COMP_WORDS=(tessera run --te) COMP_CWORD=2; _tessera\n"
                                         "echo ${COMPREPLY[*]}\n"
                                         "COMP_WORDS=(tessera run -ctk q) COMP_CWORD=3; _tessera\n"
                                         "echo ${COMPREPLY[*]}\n"
                                         "COMP_WORDS=(tessera run --act = i)\n"
                                         "COMP_CWORD=4; _tessera\n"
                                         "echo ${COMPREPLY[*]}\n"
                                         "COMP_WORDS=(tessera be) COMP_CWORD=1; _tessera\n"
                                         "echo ${COMPREPLY[*]}\n";
    const std::string command = "cd '" + folder_.string() + "' && bash try.sh >tried 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << contents(folder_ / "tried");
    EXPECT_EQ(contents(folder_ / "tried"), "--temp --temperature\nq8_0\nint8\nbench\n");
}

}  // namespace
}  // namespace tessera
