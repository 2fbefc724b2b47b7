#pragma once
// The expressions of the grammar; parser.cpp adds the statements.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace tessera::jinja {

class ExpressionParser {
  protected:
    explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
    ~ExpressionParser() = default;

    [[noreturn]] void error(const std::string& message) const;
    const Token& current() const { return tokens_[position_]; }
    const Token& ahead() const;
    Token next();
    bool is_sign(std::string_view sign) const;
    bool is_name(std::string_view name) const;
    bool skip_sign(std::string_view sign);
    bool skip_name(std::string_view name);
    void expect_sign(std::string_view sign);
    std::string expect_name();
    void expect(TokenType type, std::string_view description);

    /// How a comma-separated list may look.
    struct TupleRules {
        bool simplified = false;         ///< names and literals only: targets
        bool with_condition = true;      ///< `a if b else c` is allowed
        bool parenthesized = false;      ///< an empty tuple is allowed
        bool with_namespace = false;     ///< `ns.name` is a target
        std::string_view end_name = {};  ///< a name that ends it
    };
    ExpressionPtr tuple(const TupleRules& rules);
    ExpressionPtr expression(bool with_condition = true);
    ExpressionPtr primary(bool with_namespace);
    /// The filters that follow; `operand` may be null. `inline_first`: the first has no `|`.
    ExpressionPtr filters(ExpressionPtr operand, bool inline_first);
    /// Gives the node its height and checks it.
    ExpressionPtr finish(ExpressionPtr node) const;

  private:
    class Depth;
    ExpressionPtr condition();
    ExpressionPtr or_expression();
    ExpressionPtr and_expression();
    ExpressionPtr not_expression();
    ExpressionPtr comparison();
    ExpressionPtr sum();
    ExpressionPtr concatenation();
    ExpressionPtr product();
    ExpressionPtr power();
    ExpressionPtr unary(bool with_filter);
    ExpressionPtr postfix(ExpressionPtr node);
    ExpressionPtr filter_expression(ExpressionPtr node);
    ExpressionPtr subscript(ExpressionPtr object);
    ExpressionPtr call(ExpressionPtr callee);
    ExpressionPtr test(ExpressionPtr operand);
    ExpressionPtr list();
    ExpressionPtr dictionary();
    std::string dotted_name();
    void arguments(Expression& node);
    bool at_tuple_end(const TupleRules& rules) const;

    std::vector<Token> tokens_;
    size_t position_ = 0;
    int depth_ = 0;
};

}  // namespace tessera::jinja
