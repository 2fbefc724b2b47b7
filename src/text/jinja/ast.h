#pragma once
// The parsed template.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/operations.h"
#include "text/jinja/value.h"

namespace tessera::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class ExpressionKind : uint8_t {
    kConstant,   ///< value
    kName,       ///< name
    kAttribute,  ///< children[0] . name
    kItem,       ///< children[0] [ children[1] ]
    kSlice,      ///< children[0] [ children[1] : children[2] : children[3] ], null where omitted
    kCall,       ///< children[0] ( arguments )
    kFilter,     ///< children[0] | name ( arguments ); children[0] is null in a filter block
    kTest,       ///< children[0] is name ( arguments )
    kNot,
    kNegative,
    kPositive,
    kAnd,
    kOr,
    kCondition,   ///< children: test, then, else (null when missing)
    kCompare,     ///< children[0] operators[0] children[1] operators[1] ...
    kArithmetic,  ///< children[0] arithmetic children[1]
    kConcatenate,
    kTuple,
    kList,
    kDictionary,      ///< children: key, value, key, value ...
    kNamespaceTarget  ///< text before the dot in `value`, after it in `name`; assignments only
};

enum class CompareKind : uint8_t {
    kEqual,
    kNotEqual,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kIn,
    kNotIn
};

struct Expression {
    Expression(ExpressionKind kind_in, int line_in) : kind(kind_in), line(line_in) {}

    ExpressionKind kind;
    Arithmetic arithmetic = Arithmetic::kAdd;
    int line;
    int height = 1;  ///< levels of the tree, bounded so that recursion over it is
    std::string name;
    Value value;
    std::vector<ExpressionPtr> children;  ///< positional arguments follow the operand
    std::vector<std::pair<std::string, ExpressionPtr>> named;
    ExpressionPtr spread_positional, spread_named;
    std::vector<CompareKind> operators;
};

/// Names that a scope assigns before it reads them and that no scope around it has: they hide the
/// variable of the same name that the caller gave, even before the assignment.
struct ScopeInfo {
    std::vector<std::string> hidden;
};

enum class StatementKind : uint8_t {
    kText,         ///< text
    kPrint,        ///< expression
    kIf,           ///< branches
    kFor,          ///< target in expression if test: body, else_body
    kSet,          ///< target = expression
    kSetBlock,     ///< target = body, through the filters of expression (null: none)
    kMacro,        ///< name, parameters, body
    kCallBlock,    ///< expression is the call, parameters and body the caller
    kFilterBlock,  ///< expression is the filter
    kWith,         ///< targets = values, body
    kGeneration,   ///< body
    kBreak,
    kContinue
};

struct Branch {
    ExpressionPtr test;  ///< null for else
    Block body;
};

struct Parameter {
    std::string name;
    ExpressionPtr fallback;  ///< null: none
};

struct Statement {
    Statement(StatementKind kind_in, int line_in) : kind(kind_in), line(line_in) {}

    StatementKind kind;
    bool recursive = false;
    bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
    int line;
    std::string name;
    std::string text;
    ExpressionPtr target, expression, test;
    Block body, else_body;
    std::vector<Branch> branches;
    std::vector<Parameter> parameters;
    std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;  ///< of `with`
    ScopeInfo body_scope, else_scope;
};

/// A whole source text.
struct Template {
    Block body;
    ScopeInfo scope;
};

}  // namespace tessera::jinja
