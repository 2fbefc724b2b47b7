#pragma once
// What a row of logits says about the token that came next, and the statistics over many rows.
// Definitions as in llama-perplexity, so that numbers may stand side by side.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// -ln p(token) by softmax over the row; the sum of exponentials in f64. NaN when the row has one.
double token_nll(std::span<const float> logits, int32_t token);

/// The row's log-probabilities in 16 bits, and token_nll. `words` (row_words(vocab) of them)
/// starts with two floats, scale and minimum; ln p_i = scale * code_i + minimum. The range is the
/// row's own, at most 16 below its maximum; what lies deeper gets code 0.
double store_row(std::span<const float> logits, int32_t token, std::span<uint16_t> words);

/// One scored position compared with the stored row of a base model.
struct RowDivergence {
    double nll = 0;
    double nll_base = 0;
    double divergence = 0;  ///< KL(base || model) over tokens with ln p_base > -16
    double p_diff = 0;      ///< p(token) - p_base(token)
    bool same_top = false;
};
RowDivergence compare_row(std::span<const float> logits,
                          int32_t token,
                          std::span<const uint16_t> base);

struct Estimate {
    double value = 0;
    double error = 0;  ///< standard error
};

/// Perplexity over the values added so far.
class PerplexitySum {
  public:
    void add(double nll);
    size_t count() const { return count_; }
    /// Mean of -ln p and its standard error sqrt((E[x^2] - E[x]^2) / (n - 1)).
    Estimate mean_nll() const;
    /// exp(mean); its error is error(mean) * exp(mean).
    Estimate perplexity() const;

  private:
    double sum_ = 0;
    double sum_squares_ = 0;
    size_t count_ = 0;
};

/// Everything that `--kl-divergence` prints.
class DivergenceStats {
  public:
    void add(const RowDivergence& row);
    size_t count() const { return rows_.size(); }
    Estimate perplexity() const;
    Estimate log_ratio() const;  ///< ln(PPL / PPL(base))
    Estimate divergence() const;
    Estimate rms_p_diff() const;
    Estimate same_top() const;
    /// One line for the running table, and its heading.
    static std::string heading();
    std::string running_line(int32_t chunk) const;
    /// The final report, in llama-perplexity's layout.
    std::string report() const;

  private:
    struct Sums {
        double nll = 0, nll2 = 0, base = 0, base2 = 0, cross = 0;
        double divergence = 0, divergence2 = 0;
        double p_diff = 0, p_diff2 = 0, p_diff4 = 0;
        size_t same_top = 0;
    };
    Estimate mean(double sum, double sum_squares) const;
    double covariance() const;
    std::string perplexity_report() const;
    Sums sums_;
    std::vector<RowDivergence> rows_;
};

/// Value at `fraction` of sorted values, linear between neighbours.
double percentile(std::span<const double> sorted, double fraction);

}  // namespace tessera
