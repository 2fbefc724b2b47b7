#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <utility>

namespace tessera::jinja {
namespace {

ExpressionPtr make(ExpressionKind kind, int line) {
    return std::make_unique<Expression>(kind, line);
}

template <class... Children>
ExpressionPtr make(ExpressionKind kind, int line, Children... children) {
    ExpressionPtr node = make(kind, line);
    (node->children.push_back(std::move(children)), ...);
    return node;
}

}  // namespace

/// Bounds the recursion of the parser itself.
class ExpressionParser::Depth {
  public:
    explicit Depth(ExpressionParser& parser) : parser_(parser) {
        if (++parser_.depth_ > kMaxDepth) parser_.error("expressions are nested too deeply");
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

  private:
    ExpressionParser& parser_;
};

void ExpressionParser::error(const std::string& message) const {
    throw SyntaxError(message, current().line);
}

const Token& ExpressionParser::ahead() const {
    return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

Token ExpressionParser::next() {
    Token token = current();
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
}

bool ExpressionParser::is_sign(std::string_view sign) const {
    return current().type == TokenType::kOperator && current().text == sign;
}

bool ExpressionParser::is_name(std::string_view name) const {
    return current().type == TokenType::kName && current().text == name;
}

bool ExpressionParser::skip_sign(std::string_view sign) {
    if (!is_sign(sign)) return false;
    next();
    return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
}

void ExpressionParser::expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) {
        error("expected '" + std::string(sign) + "', got '" + current().text + "'");
    }
}

std::string ExpressionParser::expect_name() {
    expect(TokenType::kName, "a name");
    return tokens_[position_ - 1].text;
}

void ExpressionParser::expect(TokenType type, std::string_view description) {
    if (current().type != type) {
        const std::string got = current().type == TokenType::kEnd ? "the end of the template"
                                                                  : "'" + current().text + "'";
        error("expected " + std::string(description) + ", got " + got);
    }
    next();
}

ExpressionPtr ExpressionParser::finish(ExpressionPtr node) const {
    int below = 0;
    const auto look = [&below](const ExpressionPtr& child) {
        if (child != nullptr) below = std::max(below, child->height);
    };
    for (const ExpressionPtr& child : node->children) look(child);
    for (const auto& [name, child] : node->named) look(child);
    look(node->spread_positional);
    look(node->spread_named);
    node->height = below + 1;
    if (node->height > kMaxDepth) error("expressions are nested too deeply");
    return node;
}

bool ExpressionParser::at_tuple_end(const TupleRules& rules) const {
    const TokenType type = current().type;
    if (type == TokenType::kVariableEnd || type == TokenType::kBlockEnd || is_sign(")"))
        return true;
    return !rules.end_name.empty() && is_name(rules.end_name);
}

ExpressionPtr ExpressionParser::tuple(const TupleRules& rules) {
    const int line = current().line;
    std::vector<ExpressionPtr> items;
    bool is_tuple = false;
    while (true) {
        if (!items.empty()) expect_sign(",");
        if (at_tuple_end(rules)) break;
        items.push_back(rules.simplified ? primary(rules.with_namespace)
                                         : expression(rules.with_condition));
        if (!is_sign(",")) break;
        is_tuple = true;
    }
    if (!is_tuple) {
        if (!items.empty()) return std::move(items[0]);
        if (!rules.parenthesized) error("expected an expression, got '" + current().text + "'");
    }
    ExpressionPtr node = make(ExpressionKind::kTuple, line);
    node->children = std::move(items);
    return finish(std::move(node));
}

ExpressionPtr ExpressionParser::expression(bool with_condition) {
    const Depth depth(*this);
    return with_condition ? condition() : or_expression();
}

ExpressionPtr ExpressionParser::condition() {
    int line = current().line;
    ExpressionPtr node = or_expression();
    while (skip_name("if")) {
        ExpressionPtr test = or_expression();
        ExpressionPtr otherwise;
        if (skip_name("else")) {
            const Depth depth(*this);
            otherwise = condition();
        }
        node = finish(make(ExpressionKind::kCondition, line, std::move(test), std::move(node),
                           std::move(otherwise)));
        line = current().line;
    }
    return node;
}

ExpressionPtr ExpressionParser::or_expression() {
    const int line = current().line;
    ExpressionPtr left = and_expression();
    while (skip_name("or")) {
        left = finish(make(ExpressionKind::kOr, line, std::move(left), and_expression()));
    }
    return left;
}

ExpressionPtr ExpressionParser::and_expression() {
    const int line = current().line;
    ExpressionPtr left = not_expression();
    while (skip_name("and")) {
        left = finish(make(ExpressionKind::kAnd, line, std::move(left), not_expression()));
    }
    return left;
}

ExpressionPtr ExpressionParser::not_expression() {
    const int line = current().line;
    if (!skip_name("not")) return comparison();
    const Depth depth(*this);
    return finish(make(ExpressionKind::kNot, line, not_expression()));
}

ExpressionPtr ExpressionParser::comparison() {
    static constexpr std::pair<std::string_view, CompareKind> kSigns[] = {
        {"==", CompareKind::kEqual},  {"!=", CompareKind::kNotEqual},
        {"<", CompareKind::kLess},    {"<=", CompareKind::kLessEqual},
        {">", CompareKind::kGreater}, {">=", CompareKind::kGreaterEqual}};
    const int line = current().line;
    ExpressionPtr first = sum();
    ExpressionPtr node;
    while (true) {
        const auto* sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                        [this](const auto& known) { return is_sign(known.first); });
        CompareKind kind = CompareKind::kIn;
        if (sign != std::end(kSigns)) {
            kind = sign->second;
        } else if (is_name("not") && ahead().type == TokenType::kName && ahead().text == "in") {
            kind = CompareKind::kNotIn;
            next();
        } else if (!is_name("in")) {
            break;
        }
        next();
        if (node == nullptr) node = make(ExpressionKind::kCompare, line, std::move(first));
        node->operators.push_back(kind);
        node->children.push_back(sum());
    }
    return node == nullptr ? std::move(first) : finish(std::move(node));
}

ExpressionPtr ExpressionParser::sum() {
    const int line = current().line;
    ExpressionPtr left = concatenation();
    while (is_sign("+") || is_sign("-")) {
        const bool add = next().text == "+";
        left = make(ExpressionKind::kArithmetic, line, std::move(left), concatenation());
        left->arithmetic = add ? Arithmetic::kAdd : Arithmetic::kSubtract;
        left = finish(std::move(left));
    }
    return left;
}

ExpressionPtr ExpressionParser::concatenation() {
    const int line = current().line;
    ExpressionPtr first = product();
    if (!is_sign("~")) return first;
    ExpressionPtr node = make(ExpressionKind::kConcatenate, line, std::move(first));
    while (skip_sign("~")) node->children.push_back(product());
    return finish(std::move(node));
}

ExpressionPtr ExpressionParser::product() {
    const int line = current().line;
    ExpressionPtr left = power();
    while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
        const std::string sign = next().text;
        left = make(ExpressionKind::kArithmetic, line, std::move(left), power());
        left->arithmetic = sign == "*"    ? Arithmetic::kMultiply
                           : sign == "/"  ? Arithmetic::kDivide
                           : sign == "//" ? Arithmetic::kFloorDivide
                                          : Arithmetic::kModulo;
        left = finish(std::move(left));
    }
    return left;
}

/// Groups from the left, unlike Python: Jinja2 does.
ExpressionPtr ExpressionParser::power() {
    const int line = current().line;
    ExpressionPtr left = unary(/*with_filter=*/true);
    while (skip_sign("**")) {
        left = make(ExpressionKind::kArithmetic, line, std::move(left), unary(true));
        left->arithmetic = Arithmetic::kPower;
        left = finish(std::move(left));
    }
    return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
    const int line = current().line;
    ExpressionPtr node;
    if (is_sign("-") || is_sign("+")) {
        const Depth depth(*this);
        const bool minus = next().text == "-";
        node = finish(make(minus ? ExpressionKind::kNegative : ExpressionKind::kPositive, line,
                           unary(/*with_filter=*/false)));
    } else {
        node = primary(/*with_namespace=*/false);
    }
    node = postfix(std::move(node));
    return with_filter ? filter_expression(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::primary(bool with_namespace) {
    const Token token = current();
    ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
    if (token.type == TokenType::kName) {
        next();
        if (token.text == "true" || token.text == "True") {
            node->value = Value::boolean(true);
        } else if (token.text == "false" || token.text == "False") {
            node->value = Value::boolean(false);
        } else if (token.text == "none" || token.text == "None") {
            node->value = Value();
        } else if (with_namespace && skip_sign(".")) {
            node->kind = ExpressionKind::kNamespaceTarget;
            node->value = Value::literal(token.text);
            node->name = expect_name();
        } else {
            node->kind = ExpressionKind::kName;
            node->name = token.text;
        }
        return node;
    }
    if (token.type == TokenType::kString) {
        std::string text;
        while (current().type == TokenType::kString) text += next().text;
        node->value = Value::literal(std::move(text));
        return node;
    }
    if (token.type == TokenType::kNumber) {
        node->value = next().value;
        return node;
    }
    if (skip_sign("(")) {
        const Depth depth(*this);
        node = tuple({.parenthesized = true});
        expect_sign(")");
        return node;
    }
    if (is_sign("[")) return list();
    if (is_sign("{")) return dictionary();
    if (token.type == TokenType::kEnd) error("unexpected end of template");
    error("unexpected '" + token.text + "'");
}

ExpressionPtr ExpressionParser::list() {
    ExpressionPtr node = make(ExpressionKind::kList, next().line);
    while (!is_sign("]")) {
        if (!node->children.empty()) expect_sign(",");
        if (is_sign("]")) break;
        node->children.push_back(expression());
    }
    expect_sign("]");
    return finish(std::move(node));
}

ExpressionPtr ExpressionParser::dictionary() {
    ExpressionPtr node = make(ExpressionKind::kDictionary, next().line);
    while (!is_sign("}")) {
        if (!node->children.empty()) expect_sign(",");
        if (is_sign("}")) break;
        node->children.push_back(expression());
        expect_sign(":");
        node->children.push_back(expression());
    }
    expect_sign("}");
    return finish(std::move(node));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr node) {
    while (true) {
        if (is_sign(".") || is_sign("[")) {
            node = subscript(std::move(node));
        } else if (is_sign("(")) {
            node = call(std::move(node));
        } else {
            return node;
        }
    }
}

ExpressionPtr ExpressionParser::filter_expression(ExpressionPtr node) {
    while (true) {
        if (is_sign("|")) {
            node = filters(std::move(node), /*inline_first=*/false);
        } else if (is_name("is")) {
            node = test(std::move(node));
        } else if (is_sign("(")) {
            node = call(std::move(node));
        } else {
            return node;
        }
    }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
    const Token token = next();
    if (token.text == ".") {
        const Token attribute = next();
        if (attribute.type == TokenType::kName) {
            ExpressionPtr node = make(ExpressionKind::kAttribute, token.line, std::move(object));
            node->name = attribute.text;
            return finish(std::move(node));
        }
        if (attribute.type != TokenType::kNumber || !attribute.value.is(Type::kInt)) {
            error("expected name or number");
        }
        ExpressionPtr index = make(ExpressionKind::kConstant, token.line);
        index->value = attribute.value;
        return finish(make(ExpressionKind::kItem, token.line, std::move(object), std::move(index)));
    }
    ExpressionPtr start, stop, step;
    if (skip_sign("]")) {
        // Jinja2 takes `x[]` for the item of the empty tuple.
        return finish(make(ExpressionKind::kItem, token.line, std::move(object),
                           make(ExpressionKind::kTuple, token.line)));
    }
    if (!is_sign(":")) {
        start = expression();
        if (is_sign(",")) {
            ExpressionPtr key = make(ExpressionKind::kTuple, token.line, std::move(start));
            while (skip_sign(",")) key->children.push_back(expression());
            start = finish(std::move(key));
        }
        if (skip_sign("]")) {
            return finish(
                make(ExpressionKind::kItem, token.line, std::move(object), std::move(start)));
        }
    }
    expect_sign(":");
    if (!is_sign(":") && !is_sign("]")) stop = expression();
    if (skip_sign(":") && !is_sign("]")) step = expression();
    expect_sign("]");
    return finish(make(ExpressionKind::kSlice, token.line, std::move(object), std::move(start),
                       std::move(stop), std::move(step)));
}

void ExpressionParser::arguments(Expression& node) {
    expect_sign("(");
    bool require_comma = false;
    const auto ensure = [this](bool condition) {
        if (!condition) error("invalid syntax for function call expression");
    };
    while (!is_sign(")")) {
        if (require_comma) {
            expect_sign(",");
            if (is_sign(")")) break;
        }
        if (skip_sign("*")) {
            ensure(node.spread_positional == nullptr && node.spread_named == nullptr);
            node.spread_positional = expression();
        } else if (skip_sign("**")) {
            ensure(node.spread_named == nullptr);
            node.spread_named = expression();
        } else if (current().type == TokenType::kName && ahead().type == TokenType::kOperator &&
                   ahead().text == "=") {
            ensure(node.spread_named == nullptr);
            const std::string name = next().text;
            next();
            const auto same = [&name](const auto& other) { return other.first == name; };
            ensure(std::none_of(node.named.begin(), node.named.end(), same));
            node.named.emplace_back(name, expression());
        } else {
            ensure(node.spread_positional == nullptr && node.spread_named == nullptr &&
                   node.named.empty());
            node.children.push_back(expression());
        }
        require_comma = true;
    }
    expect_sign(")");
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
    ExpressionPtr node = make(ExpressionKind::kCall, current().line, std::move(callee));
    arguments(*node);
    return finish(std::move(node));
}

std::string ExpressionParser::dotted_name() {
    std::string name = expect_name();
    while (skip_sign(".")) name += "." + expect_name();
    return name;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr operand, bool inline_first) {
    while (inline_first || is_sign("|")) {
        if (!inline_first) next();
        inline_first = false;
        ExpressionPtr node = make(ExpressionKind::kFilter, current().line, std::move(operand));
        node->name = dotted_name();
        if (is_sign("(")) arguments(*node);
        operand = finish(std::move(node));
    }
    return operand;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr operand) {
    const int line = next().line;
    const bool negated = skip_name("not");
    ExpressionPtr node = make(ExpressionKind::kTest, line, std::move(operand));
    node->name = dotted_name();
    const TokenType type = current().type;
    const bool is_keyword = is_name("else") || is_name("or") || is_name("and");
    if (is_sign("(")) {
        arguments(*node);
    } else if ((type == TokenType::kName && !is_keyword) || type == TokenType::kString ||
               type == TokenType::kNumber || is_sign("[") || is_sign("{")) {
        if (is_name("is")) error("You cannot chain multiple tests with is");
        node->children.push_back(postfix(primary(/*with_namespace=*/false)));
    }
    node = finish(std::move(node));
    if (negated) node = finish(make(ExpressionKind::kNot, line, std::move(node)));
    return node;
}

}  // namespace tessera::jinja
