#include "text/jinja/parser.h"

#include <algorithm>
#include <utility>

#include "text/jinja/expression_parser.h"
#include "text/jinja/scopes.h"

namespace tessera::jinja {
namespace {

constexpr int kMaxStatementDepth = 100;

using EndNames = std::initializer_list<std::string_view>;

class Parser : ExpressionParser {
  public:
    explicit Parser(const std::string& source) : ExpressionParser(tokenize(source)) {}

    Template run() {
        Template result;
        result.body = block({});
        return result;
    }

  private:
    /// Statements up to a tag of `ends` (its name is the current token then) or the end of the
    /// text.
    Block block(EndNames ends) {
        if (++depth_ > kMaxStatementDepth) error("statements are nested too deeply");
        Block body;
        while (current().type != TokenType::kEnd) {
            const Token token = next();
            if (token.type == TokenType::kData) {
                body.push_back(std::make_unique<Statement>(StatementKind::kText, token.line));
                body.back()->text = token.text;
            } else if (token.type == TokenType::kVariableBegin) {
                body.push_back(std::make_unique<Statement>(StatementKind::kPrint, token.line));
                body.back()->expression = tuple({});
                expect(TokenType::kVariableEnd, "'}}'");
            } else {
                if (current().type != TokenType::kName) error("tag name expected");
                if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) break;
                statement(body);
                expect(TokenType::kBlockEnd, "'%}'");
            }
        }
        --depth_;
        return body;
    }

    /// The end of the current tag and the statements up to one of `ends`.
    Block body_until(EndNames ends) {
        skip_sign(":");
        expect(TokenType::kBlockEnd, "'%}'");
        Block body = block(ends);
        if (current().type == TokenType::kEnd) {
            error("unexpected end of template, expected '" + std::string(*ends.begin()) + "'");
        }
        return body;
    }

    Block whole_body(std::string_view end) {
        Block body = body_until({end});
        next();
        return body;
    }

    void statement(Block& body) {
        const std::string tag = current().text;
        if (tag == "print") {
            print_statement(body);
            return;
        }
        static constexpr std::pair<std::string_view, void (Parser::*)(Statement&)> kTags[] = {
            {"if", &Parser::if_statement},       {"for", &Parser::for_statement},
            {"set", &Parser::set_statement},     {"macro", &Parser::macro_statement},
            {"call", &Parser::call_statement},   {"filter", &Parser::filter_statement},
            {"with", &Parser::with_statement},   {"generation", &Parser::generation_statement},
            {"break", &Parser::break_statement}, {"continue", &Parser::continue_statement}};
        for (const auto& [name, parse_tag] : kTags) {
            if (name != tag) continue;
            auto node = std::make_unique<Statement>(StatementKind::kText, next().line);
            (this->*parse_tag)(*node);
            body.push_back(std::move(node));
            return;
        }
        error("unknown or unsupported tag '" + tag + "'");
    }

    void print_statement(Block& body) {
        next();
        for (bool first = true; current().type != TokenType::kBlockEnd; first = false) {
            if (!first) expect_sign(",");
            body.push_back(std::make_unique<Statement>(StatementKind::kPrint, current().line));
            body.back()->expression = expression();
        }
    }

    void if_statement(Statement& node) {
        node.kind = StatementKind::kIf;
        bool more = true;
        while (more) {
            Branch branch;
            branch.test = tuple({.with_condition = false});
            branch.body = body_until({"elif", "else", "endif"});
            node.branches.push_back(std::move(branch));
            const std::string end = next().text;
            more = end == "elif";
            if (end == "else") node.branches.push_back({nullptr, whole_body("endif")});
        }
    }

    void for_statement(Statement& node) {
        node.kind = StatementKind::kFor;
        ++for_depth_;
        node.target = target({.simplified = true, .end_name = "in"});
        if (!skip_name("in")) error("expected 'in', got '" + current().text + "'");
        node.expression = tuple({.with_condition = false, .end_name = "recursive"});
        if (skip_name("if")) node.test = expression();
        node.recursive = skip_name("recursive");
        ++loop_depth_;
        node.body = body_until({"endfor", "else"});
        --loop_depth_;
        // In the else branch `break` belongs to the loop around this one.
        if (next().text == "else") node.else_body = whole_body("endfor");
        --for_depth_;
    }

    ExpressionPtr target(const TupleRules& rules) {
        ExpressionPtr node = tuple(rules);
        check_target(*node);
        return node;
    }

    void check_target(const Expression& node) const {
        if (node.kind == ExpressionKind::kTuple) {
            for (const ExpressionPtr& child : node.children) check_target(*child);
        } else if (node.kind == ExpressionKind::kName) {
            if (node.name == "loop" && for_depth_ > 0) {
                error("Can't assign to special loop variable in for-loop target");
            }
        } else if (node.kind != ExpressionKind::kNamespaceTarget) {
            error("can't assign to this expression");
        }
    }

    void set_statement(Statement& node) {
        node.kind = StatementKind::kSet;
        node.target = target({.simplified = true, .with_namespace = true});
        if (skip_sign("=")) {
            node.expression = tuple({});
            return;
        }
        node.kind = StatementKind::kSetBlock;
        if (is_sign("|")) node.expression = filters(nullptr, /*inline_first=*/false);
        node.body = whole_body("endset");
    }

    void signature(Statement& node) {
        expect_sign("(");
        while (!is_sign(")")) {
            if (!node.parameters.empty()) expect_sign(",");
            Parameter parameter;
            parameter.name = expect_name();
            const auto same = [&](const Parameter& other) { return other.name == parameter.name; };
            if (std::any_of(node.parameters.begin(), node.parameters.end(), same)) {
                error("duplicate argument '" + parameter.name + "'");
            }
            if (skip_sign("=")) {
                parameter.fallback = expression();
            } else if (!node.parameters.empty() && node.parameters.back().fallback != nullptr) {
                error("non-default argument follows default argument");
            }
            node.parameters.push_back(std::move(parameter));
        }
        expect_sign(")");
    }

    /// The body of a function: loops around it cannot be left from inside.
    void function_body(Statement& node, std::string_view end) {
        const int loops = std::exchange(loop_depth_, 0);
        node.body = whole_body(end);
        loop_depth_ = loops;
    }

    void macro_statement(Statement& node) {
        node.kind = StatementKind::kMacro;
        node.name = expect_name();
        signature(node);
        function_body(node, "endmacro");
    }

    void call_statement(Statement& node) {
        node.kind = StatementKind::kCallBlock;
        if (is_sign("(")) signature(node);
        node.expression = expression();
        if (node.expression->kind != ExpressionKind::kCall) error("expected call");
        function_body(node, "endcall");
    }

    void filter_statement(Statement& node) {
        node.kind = StatementKind::kFilterBlock;
        node.expression = filters(nullptr, /*inline_first=*/true);
        node.body = whole_body("endfilter");
    }

    void with_statement(Statement& node) {
        node.kind = StatementKind::kWith;
        while (current().type != TokenType::kBlockEnd) {
            if (!node.assignments.empty()) expect_sign(",");
            ExpressionPtr name = target({.simplified = true});
            expect_sign("=");
            node.assignments.emplace_back(std::move(name), expression());
        }
        node.body = whole_body("endwith");
    }

    void generation_statement(Statement& node) {
        node.kind = StatementKind::kGeneration;
        function_body(node, "endgeneration");
    }

    void break_statement(Statement& node) {
        node.kind = StatementKind::kBreak;
        if (loop_depth_ == 0) error("'break' outside loop");
    }

    void continue_statement(Statement& node) {
        node.kind = StatementKind::kContinue;
        if (loop_depth_ == 0) error("'continue' outside loop");
    }

    int depth_ = 0;
    int for_depth_ = 0;   ///< for statements around the current place
    int loop_depth_ = 0;  ///< those that `break` can leave
};

}  // namespace

Template parse(const std::string& source) {
    Template result = Parser(source).run();
    resolve_scopes(result);
    return result;
}

}  // namespace tessera::jinja
